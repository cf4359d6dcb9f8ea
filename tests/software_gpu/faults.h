// The software GPU's settings from the environment, its planned failures, and its log.
#pragma once

#include "gpu.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string setting(const char* name, const char* otherwise) {
    const char* const value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}

long number_of(const char* name, long otherwise) {
    const char* const value = std::getenv(name);
    return value == nullptr ? otherwise : std::atol(value);
}

void write_line(const std::string& line) {
    // Not destroyed: the last lines are written at the end.
    static const std::string& path = *new std::string(setting("SOFTWARE_GPU_LOG", ""));
    if (path.empty()) {
        return;
    }
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const std::string whole = line + "\n";
    if (file < 0 || write(file, whole.data(), whole.size()) < 0) {
        std::fprintf(stderr, "software GPU: %s", whole.c_str());
    }
    if (file >= 0) {
        close(file);
    }
}

struct Fault {
    std::string kind;
    long turns;
    bool is_lasting;
};

struct Faults {
    std::mutex lock;
    std::vector<Fault> due;
    bool has_begun = false;

    void add(const std::string& text) {
        std::stringstream all(text);
        for (std::string one; std::getline(all, one, ',');) {
            one.erase(std::remove(one.begin(), one.end(), '\n'), one.end());
            const size_t at = one.find('@');
            const std::string turns = at == std::string::npos ? "1" : one.substr(at + 1);
            if (!one.empty()) {
                due.push_back({one.substr(0, at), turns == "*" ? 1 : std::atol(turns.c_str()), turns == "*"});
            }
        }
    }

    bool is_due(const std::string& kind) {
        static const std::string& path = *new std::string(setting("SOFTWARE_GPU_FAULTS_FILE", ""));
        const std::lock_guard guard(lock);
        if (!has_begun) {
            has_begun = true;
            add(setting("SOFTWARE_GPU_FAULTS", ""));
        }
        if (!path.empty() && access(path.c_str(), R_OK) == 0) {
            std::stringstream text;
            text << std::ifstream(path).rdbuf();
            unlink(path.c_str());
            add(text.str());
        }
        for (auto fault = due.begin(); fault != due.end(); ++fault) {
            if (fault->kind != kind || (!fault->is_lasting && --fault->turns > 0)) {
                continue;
            }
            write_line("fault: " + kind);
            if (!fault->is_lasting) {
                due.erase(fault);
            }
            return true;
        }
        return false;
    }
};

Faults& faults = *new Faults;

}  // namespace
