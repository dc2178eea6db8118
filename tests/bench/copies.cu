// Copies between host and device by kind and size. Prints lines `KIND_SIZE GB/s`: median of the
// rounds; pinned copies are asynchronous with a synchronise behind each, pageable ones blocking.
//   copies [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "tests/programs/program.h"

static double now_s() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct Kind {
    const char* name;
    bool to_device;
    bool pinned;
};

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 9;
    const Kind kinds[] = {{"pinned_h2d", true, true},
                          {"pinned_d2h", false, true},
                          {"pageable_h2d", true, false},
                          {"pageable_d2h", false, false}};
    const size_t sizes[] = {4096, 65536, 1 << 20, 16 << 20, 128 << 20};
    const size_t most = 128 << 20;
    char *device = nullptr, *pinned = nullptr;
    char* pageable = (char*)malloc(most);
    CHECK(cudaMalloc((void**)&device, most));
    CHECK(cudaMallocHost((void**)&pinned, most));
    memset(pageable, 1, most);
    memset(pinned, 2, most);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (const Kind& kind : kinds) {
        for (const size_t size : sizes) {
            char* host = kind.pinned ? pinned : pageable;
            const int copies = size < (1 << 20) ? 50 : 1;
            std::vector<double> rates;
            for (int round = 0; round < rounds + 1; ++round) {
                const double start = now_s();
                for (int i = 0; i < copies; ++i) {
                    void* to = kind.to_device ? device : host;
                    const void* from = kind.to_device ? host : device;
                    if (kind.pinned) {
                        CHECK(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream));
                        CHECK(cudaStreamSynchronize(stream));
                    } else {
                        CHECK(cudaMemcpy(to, from, size, cudaMemcpyDefault));
                    }
                }
                if (round != 0) {  // The first one warms up.
                    rates.push_back((double)size * copies / (now_s() - start) / 1e9);
                }
            }
            std::sort(rates.begin(), rates.end());
            printf("%s_%zuK %.3f\n", kind.name, size >> 10, rates[rates.size() / 2]);
        }
    }
    return 0;
}
