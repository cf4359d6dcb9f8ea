// cuBLASLt for the software GPU: libcublasLt as the server loads it, with the functions that it calls. After cuBLASLt's
// documentation: matrices are column major with a leading dimension, a product is
// D = epilogue(alpha * op(A) * op(B) + beta * C + bias), the bias one value for each row of D. Products in FP32 alone.
#include "gpu.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace {

// cublasStatus_t, cudaDataType_t, cublasComputeType_t, cublasOperation_t.
enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
    NOT_SUPPORTED = 15,
};
constexpr int CUDA_R_32F = 0;
constexpr int CUBLAS_COMPUTE_32F = 68;
constexpr int CUBLAS_OP_N = 0, CUBLAS_OP_T = 1;

// cublasLtMatmulDescAttributes_t.
enum Attribute : int {
    DESC_COMPUTE_TYPE = 0,
    DESC_SCALE_TYPE = 1,
    DESC_POINTER_MODE = 2,
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_TRANSC = 5,
    DESC_FILL_MODE = 6,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
};
// cublasLtEpilogue_t.
constexpr unsigned EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4;

// The defaults of a preference: buffers aligned to 256 bytes, and no workspace.
constexpr uint64_t ALIGNMENT = 256;

struct Handle {
    CUcontext context;
};

struct Description {
    int compute_type, scale_type;
    int transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    unsigned epilogue = EPILOGUE_DEFAULT;
    CUdeviceptr bias = 0;
};

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;

    // Bytes from the first element to the last.
    size_t size() const { return columns == 0 ? 0 : ((columns - 1) * leading + rows) * sizeof(float); }
    bool is_valid() const { return type == CUDA_R_32F && rows > 0 && columns > 0 && leading >= int64_t(rows); }
};

struct Preference {
    uint64_t workspace_size_max = 0;
};

// cublasLtMatmulAlgo_t: it records the problem that it was found for, and each use is checked against it.
struct Algorithm {
    uint64_t words[8];
};

// cublasLtMatmulHeuristicResult_t.
struct Heuristic {
    Algorithm algorithm;
    size_t workspace_size;
    int state;
    float waves;
    int reserved[4];
};

constexpr uint64_t MAGIC = 0x736f667477617265;

// Returns true if the matrices go together: op(A) m x k, op(B) k x n, C and D m x n.
bool are_matching(const Description& is, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    const bool is_a = is.transpose_a == CUBLAS_OP_T, is_b = is.transpose_b == CUBLAS_OP_T;
    const uint64_t m = is_a ? a.columns : a.rows, inner = is_a ? a.rows : a.columns;
    const uint64_t inner_b = is_b ? b.columns : b.rows, n = is_b ? b.rows : b.columns;
    return a.is_valid() && b.is_valid() && c.is_valid() && d.is_valid() && inner == inner_b && c.rows == m &&
           c.columns == n && d.rows == m && d.columns == n;
}

Algorithm algorithm_for(const Description& is, const Layout& a, const Layout& b, const Layout& d) {
    return {{MAGIC, static_cast<uint64_t>(is.transpose_a * 2 + is.transpose_b), is.epilogue, a.rows, a.columns, b.columns,
             static_cast<uint64_t>(d.leading), 0}};
}

struct Product {
    Description is;
    float alpha, beta;
    CUdeviceptr a, b, c, d;
    Layout a_layout, b_layout, c_layout, d_layout;
    bool is_wrong;
};

CUresult multiply(CUcontext context, const Product& of) {
    const auto matrix = [context](CUdeviceptr pointer, size_t size) {
        return static_cast<float*>(software_gpu::resolve(context, pointer, size));
    };
    const float* const a = matrix(of.a, of.a_layout.size());
    const float* const b = matrix(of.b, of.b_layout.size());
    float* const d = matrix(of.d, of.d_layout.size());
    const uint64_t m = of.d_layout.rows, n = of.d_layout.columns;
    const bool is_a = of.is.transpose_a == CUBLAS_OP_T, is_b = of.is.transpose_b == CUBLAS_OP_T;
    const uint64_t inner = is_a ? of.a_layout.rows : of.a_layout.columns;
    // C is not read if beta is zero.
    const float* const c = of.beta == 0.0f ? d : matrix(of.c, of.c_layout.size());
    const bool has_bias = (of.is.epilogue & EPILOGUE_BIAS) != 0;
    const float* const bias = has_bias ? matrix(of.is.bias, m * sizeof(float)) : d;
    if (a == nullptr || b == nullptr || c == nullptr || d == nullptr || bias == nullptr) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    // As rows of op(A), so that the multiplied elements lie side by side.
    std::vector<float> rows(m * inner), column(inner);
    for (uint64_t i = 0; i < m; i++) {
        for (uint64_t p = 0; p < inner; p++) {
            const uint64_t at = is_a ? p + i * of.a_layout.leading : i + p * of.a_layout.leading;
            // The planted fault: as if it were row major.
            rows[i * inner + p] = a[of.is_wrong ? (is_a ? i + p * m : p + i * inner) : at];
        }
    }
    std::vector<float> results(m * n);
    for (uint64_t j = 0; j < n; j++) {
        for (uint64_t p = 0; p < inner; p++) {
            column[p] = b[is_b ? j + p * of.b_layout.leading : p + j * of.b_layout.leading];
        }
        for (uint64_t i = 0; i < m; i++) {
            float parts[8] = {};
            const float* const row = &rows[i * inner];
            uint64_t p = 0;
            for (; p + 8 <= inner; p += 8) {
                for (int lane = 0; lane < 8; lane++) {
                    parts[lane] += row[p + lane] * column[p + lane];
                }
            }
            float sum = 0.0f;
            for (; p < inner; p++) {
                sum += row[p] * column[p];
            }
            for (const float part : parts) {
                sum += part;
            }
            float value = of.alpha * sum;
            if (of.beta != 0.0f) {
                value += of.beta * c[i + j * of.c_layout.leading];
            }
            if (has_bias) {
                value += bias[i];
            }
            if ((of.is.epilogue & EPILOGUE_RELU) != 0) {
                value = std::fmax(value, 0.0f);
            }
            results[i + j * m] = value;
        }
    }
    for (uint64_t j = 0; j < n; j++) {
        std::memcpy(d + j * of.d_layout.leading, &results[j * m], m * sizeof(float));
    }
    return CUDA_SUCCESS;
}

template <class T>
Status destroy(T* what) {
    delete what;
    return SUCCESS;
}

}  // namespace

extern "C" {

EXPORTED Status cublasLtCreate(Handle** handle) {
    const CUcontext context = software_gpu::current();
    if (context == nullptr) {
        software_gpu::misuse("cublasLtCreate without a current context");
        return NOT_INITIALIZED;
    }
    *handle = new Handle{context};
    return SUCCESS;
}

EXPORTED Status cublasLtDestroy(Handle* handle) {
    if (handle->context != software_gpu::current()) {
        software_gpu::misuse("cublasLtDestroy in another context than cublasLtCreate");
    }
    return destroy(handle);
}

EXPORTED Status cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    *layout = new Layout{type, rows, columns, leading};
    return SUCCESS;
}

EXPORTED Status cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

EXPORTED Status cublasLtMatmulDescCreate(Description** description, int compute_type, int scale_type) {
    if (compute_type != CUBLAS_COMPUTE_32F || scale_type != CUDA_R_32F) {
        return NOT_SUPPORTED;
    }
    *description = new Description{compute_type, scale_type};
    return SUCCESS;
}

EXPORTED Status cublasLtMatmulDescDestroy(Description* description) { return destroy(description); }

EXPORTED Status cublasLtMatmulDescSetAttribute(Description* description, int attribute, const void* value, size_t size) {
    const auto take = [&](auto& place) {
        if (value == nullptr || size != sizeof place) {
            return INVALID_VALUE;
        }
        std::memcpy(&place, value, size);
        return SUCCESS;
    };
    switch (attribute) {
        case DESC_TRANSA: return take(description->transpose_a);
        case DESC_TRANSB: return take(description->transpose_b);
        case DESC_EPILOGUE: return take(description->epilogue);
        case DESC_BIAS_POINTER: return take(description->bias);
        default: software_gpu::misuse("a descriptor's attribute " + std::to_string(attribute)); return INVALID_VALUE;
    }
}

EXPORTED Status cublasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference;
    return SUCCESS;
}

EXPORTED Status cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }

EXPORTED Status cublasLtMatmulAlgoGetHeuristic(Handle* handle, Description* description, Layout* a, Layout* b, Layout* c,
                                               Layout* d, Preference* preference, int asked, Heuristic* results,
                                               int* count) {
    *count = 0;
    if (handle == nullptr || preference == nullptr || asked < 1 || results == nullptr) {
        return INVALID_VALUE;
    }
    if (!are_matching(*description, *a, *b, *c, *d)) {
        software_gpu::misuse("matrices that do not go together");
        return INVALID_VALUE;
    }
    const unsigned known = EPILOGUE_DEFAULT | EPILOGUE_RELU | EPILOGUE_BIAS;
    const unsigned epilogue = description->epilogue;
    const bool is_epilogue = epilogue == EPILOGUE_DEFAULT || (epilogue & EPILOGUE_DEFAULT) == 0;
    if (epilogue == 0 || (epilogue & ~known) != 0 || !is_epilogue || software_gpu::is_due("no-algorithm")) {
        return NOT_SUPPORTED;
    }
    results[0] = {algorithm_for(*description, *a, *b, *d), 0, SUCCESS, 1.0f, {}};
    *count = 1;
    return SUCCESS;
}

EXPORTED Status cublasLtMatmul(Handle* handle, Description* description, const void* alpha, const void* a,
                               Layout* a_layout, const void* b, Layout* b_layout, const void* beta, const void* c,
                               Layout* c_layout, void* d, Layout* d_layout, const Algorithm* algorithm, void* workspace,
                               size_t workspace_size, CUstream stream) {
    const CUcontext context = software_gpu::context_of(stream);
    if (handle == nullptr || context == nullptr || handle->context != context || context != software_gpu::current()) {
        software_gpu::misuse("a product on a stream of another context, or where another context is current");
        return INVALID_VALUE;
    }
    if (alpha == nullptr || beta == nullptr || !are_matching(*description, *a_layout, *b_layout, *c_layout, *d_layout)) {
        return INVALID_VALUE;
    }
    if (workspace != nullptr || workspace_size != 0) {
        software_gpu::misuse("a workspace that no algorithm asked for");
        return INVALID_VALUE;
    }
    const Algorithm found = algorithm_for(*description, *a_layout, *b_layout, *d_layout);
    if (algorithm != nullptr && std::memcmp(algorithm, &found, sizeof found) != 0) {
        software_gpu::misuse("an algorithm that was found for another product");
        return INVALID_VALUE;
    }
    const auto address = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
    if ((address(a) | address(b) | address(c) | address(d)) % ALIGNMENT != 0) {
        software_gpu::misuse("a matrix that does not lie on 256 bytes, as the preference has it");
        return NOT_SUPPORTED;
    }
    if (software_gpu::is_due("matmul-fails")) {
        return EXECUTION_FAILED;
    }
    Product product{*description,
                    *static_cast<const float*>(alpha),
                    *static_cast<const float*>(beta),
                    address(a),
                    address(b),
                    address(c),
                    address(d),
                    *a_layout,
                    *b_layout,
                    *c_layout,
                    *d_layout,
                    software_gpu::is_due("matmul")};
    const CUresult outcome = software_gpu::enqueue(stream, [context, product] { return multiply(context, product); });
    return outcome == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}

}  // extern "C"
