// Trap: machine code without PTX, whose variables a driver puts elsewhere after a move: modules
// that were loaded before it at the source are gone. Their addresses are in device memory and in
// the host's, and one of them nobody knows.
#include "program.h"

#define THREADS 64

/// What `step` does, on the host.
struct Model {
    unsigned counter, squares[16], cursor;
    unsigned long long sums[THREADS];
};

static void step_model(Model* model, unsigned* out) {
    static const unsigned factors[4] = {7, 11, 13, 17};
    model->counter += THREADS;
    for (unsigned i = 0; i < THREADS; ++i) {
        model->sums[i] += model->squares[i % 16] * factors[i % 4];
    }
    model->squares[model->cursor] += 2;
    model->cursor = (model->cursor + 1) % 16;
    out[0] = model->counter;
    out[1] = model->cursor;
    out[2] = model->squares[model->cursor];
    out[3] = (unsigned)model->sums[17];
}

struct Code {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    Model model;
    void *squares, *counter;
};

static char folder[4096];

static cudaLibrary_t load(const char* name) {
    char path[8192];
    snprintf(path, sizeof path, "%s%s", folder, name);
    cudaLibrary_t library;
    CHECK(cudaLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    return library;
}

static void* address_of(const Code& code, const char* name) {
    void* address = NULL;
    size_t bytes = 0;
    CHECK(cudaLibraryGetGlobal(&address, &bytes, code.library, name));
    return address;
}

static void run(const void* kernel, unsigned* out, unsigned threads) {
    void* args[] = {&out};
    CHECK(cudaLaunchKernel(kernel, dim3(1), dim3(threads), args, 0, 0));
}

static void check_step(Code* code, unsigned* out) {
    unsigned got[4], wanted[4];
    run((const void*)code->kernel, out, THREADS);
    CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    step_model(&code->model, wanted);
    for (int i = 0; i < 4; ++i) {
        if (got[i] != wanted[i]) {
            fprintf(stderr, "word %d is %u, expected %u\n", i, got[i], wanted[i]);
            exit(1);
        }
    }
}

/// Modules that are unloaded again: what lies behind them would lie elsewhere without them.
static cudaLibrary_t load_filler(unsigned* out) {
    cudaLibrary_t library = load("sass_filler.cubin");
    cudaKernel_t kernel;
    unsigned got = 0;
    CHECK(cudaLibraryGetKernel(&kernel, library, "fill"));
    run((const void*)kernel, out, 1);
    CHECK(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == 2);
    return library;
}

int main(int, char** argv) {
    snprintf(folder, sizeof folder, "%s", argv[0]);
    char* slash = strrchr(folder, '/');
    slash == NULL ? (void)(folder[0] = 0) : (void)(slash[1] = 0);
    const char* rounds_text = getenv("PROGRAM_ROUNDS");
    const int rounds = rounds_text != NULL ? atoi(rounds_text) : 1;
    unsigned* out = NULL;
    CHECK(cudaMalloc((void**)&out, 4096));
    Code codes[3];
    static const char* const files[3] = {
        "sass_variables_whole.fatbin", "sass_variables_whole.cubin", "sass_variables_linked.cubin"};
    cudaLibrary_t fillers[3];
    for (int i = 0; i < 3; ++i) {
        fillers[i] = load_filler(out);
        Code& code = codes[i];
        memset(&code, 0, sizeof code);
        code.library = load(files[i]);
        for (unsigned k = 0; k < 16; ++k) {
            code.model.squares[k] = k * k;
        }
        code.model.cursor = 3;
        CHECK(cudaLibraryGetKernel(&code.kernel, code.library, "step"));
        code.squares = address_of(code, "squares");
        check_step(&code, out);
    }
    for (int i = 0; i < 3; ++i) {
        CHECK(cudaLibraryUnload(fillers[i]));
    }
    midpoint();
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < 3; ++i) {
            Code& code = codes[i];
            check_step(&code, out);
            EXPECT(code.squares == address_of(code, "squares"));
            unsigned square = 0;
            CHECK(cudaMemcpy(&square, (unsigned*)code.squares + 5, 4, cudaMemcpyDeviceToHost));
            EXPECT(square == code.model.squares[5]);
            // Asked for the first time after the first move, and ever after at the same place.
            if (round == rounds / 2) {
                code.counter = address_of(code, "counter");
            }
            if (code.counter != NULL) {
                EXPECT(code.counter == address_of(code, "counter"));
                unsigned count = 0;
                CHECK(cudaMemcpy(&count, code.counter, 4, cudaMemcpyDeviceToHost));
                EXPECT(count == code.model.counter);
            }
        }
        if (rounds > 1) {
            usleep(20000);
        }
    }
    for (int i = 0; i < 3; ++i) {
        static const unsigned first[5] = {3, 1, 4, 1, 5};
        unsigned got[5];
        CHECK(cudaMemcpy(got, address_of(codes[i], "unnamed"), sizeof got, cudaMemcpyDeviceToHost));
        EXPECT(memcmp(got, first, sizeof got) == 0);
    }
    return pass("sass_variables");
}
