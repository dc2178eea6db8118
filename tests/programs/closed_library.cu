// Trap: libraries load libcuda.so.1 when they need it and close it again, in threads that end: what
// a driver has left of threads, callbacks and addresses must not be missed then.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>

#include "program.h"

#define ENTRY(name) auto name##_ = (decltype(&name))dlsym(library, #name)
#define OK(call) EXPECT_STATUS(call, CUDA_SUCCESS)

typedef CUresult (*Create)(CUcontext*, unsigned int, CUdevice);

static int called = 0;

static void* use(void* is_last) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != nullptr);
    ENTRY(cuInit);
    ENTRY(cuLaunchHostFunc);
    ENTRY(cuCtxSynchronize);
    const Create create = (Create)dlsym(library, "cuCtxCreate_v2");
    const auto destroy = (decltype(&cuCtxDestroy))dlsym(library, "cuCtxDestroy_v2");
    CUcontext context = nullptr;
    OK(cuInit_(0));
    OK(create(&context, 0, 0));
    if (is_last != nullptr) {
        midpoint();
    }
    OK(cuLaunchHostFunc_(
        nullptr, [](void*) { ++called; }, nullptr));
    OK(cuCtxSynchronize_());
    OK(destroy(context));
    EXPECT(dlclose(library) == 0);
    return nullptr;
}

int main() {
    int is_last = 1;
    for (int round = 0; round < 3; ++round) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, nullptr, use, round == 2 ? &is_last : nullptr) == 0);
        EXPECT(pthread_join(thread, nullptr) == 0);
    }
    use(nullptr);
    usleep(100000);
    EXPECT(called == 4);
    printf("called %d times\n", called);
    return pass("closed_library");
}
