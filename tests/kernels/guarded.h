// Memory that detects accesses beyond it.
#pragma once

#include "emulate.h"

#include <sys/mman.h>

namespace {

constexpr size_t PAGE = 4096;
constexpr unsigned char MARK = 0xee;

// Memory that ends at an unmapped page, and whose front is marked.
class Guarded {
   public:
    explicit Guarded(size_t size, size_t alignment = 16) : size_(size) {
        const size_t held = (size + alignment - 1) / alignment * alignment;
        pages_ = (held + PAGE - 1) / PAGE * PAGE + PAGE;
        void* const mapped = mmap(nullptr, pages_ + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) {
            emulated::fail("no memory");
        }
        pages_start_ = static_cast<unsigned char*>(mapped);
        mprotect(pages_start_ + pages_, PAGE, PROT_NONE);
        start_ = pages_start_ + pages_ - held;
        std::memset(pages_start_, MARK, pages_);
    }
    Guarded(const Guarded&) = delete;
    Guarded(Guarded&& other) noexcept { *this = std::move(other); }
    Guarded& operator=(Guarded&& other) noexcept {
        std::swap(pages_start_, other.pages_start_);
        std::swap(start_, other.start_);
        std::swap(pages_, other.pages_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Guarded() {
        if (pages_start_ != nullptr) {
            munmap(pages_start_, pages_ + PAGE);
        }
    }

    unsigned char* start() const { return start_; }
    size_t size() const { return size_; }

    // Returns true if nothing was written beside it.
    bool is_whole() const {
        return std::all_of(pages_start_, start_, [](unsigned char byte) { return byte == MARK; }) &&
               std::all_of(start_ + size_, pages_start_ + pages_, [](unsigned char byte) { return byte == MARK; });
    }

    void check() const {
        if (!is_whole()) {
            emulated::fail("a kernel wrote beside a buffer");
        }
    }

   private:
    unsigned char* pages_start_ = nullptr;
    unsigned char* start_ = nullptr;
    size_t pages_ = 0;
    size_t size_ = 0;
};

}  // namespace
