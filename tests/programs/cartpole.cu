// Poles on carts: n environments, k steps in one launch, actions and starts by integer randomness.
// Whatever k is, each environment goes the same way, bit by bit, also on the CPU and across a move:
// the arithmetic of a step is the same, in registers or from memory. With more launches or longer
// ones for the same work it is a load whose launch rate and kernel length can be chosen.
//
//   cartpole                      runs every k, compares them with each other and with the CPU
//   cartpole N K STEPS [LAUNCHES] runs one of them and prints steps of environments a second and
//                                 the digest; so many launches between two synchronisations (0: one
//                                 at the end)
#include <time.h>

#include "program.h"

struct Cart {
    float x, v, angle, spin;
    uint32_t random;
    uint32_t age;
    uint64_t trace;  // Of all states so far.
};

// As in Barto, Sutton and Anderson (1983): half a pole's length, masses, force, and Euler's step.
#define STEP_S 0.02f
#define FORCE_N 10.0f
#define CART_KG 1.0f
#define POLE_KG 0.1f
#define HALF_POLE_M 0.5f
#define GRAVITY 9.8f
#define END_X 2.4f
#define END_ANGLE 0.2094f
#define END_AGE 500u

__host__ __device__ static uint32_t next_random(uint32_t* state) {
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

__host__ __device__ static float start_value(uint32_t* state) {
    return ((float)(next_random(state) >> 8) - 8388608.0f) * (0.05f / 8388608.0f);
}

__host__ __device__ static uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

__host__ __device__ static void begin_episode(Cart* cart) {
    cart->x = start_value(&cart->random);
    cart->v = start_value(&cart->random);
    cart->angle = start_value(&cart->random);
    cart->spin = start_value(&cart->random);
    cart->age = 0;
}

// Sine and cosine of small angles by their series: a library's differ from the CPU's.
__host__ __device__ static void step(Cart* cart) {
    const float square = cart->angle * cart->angle;
    const float sine = cart->angle * (1.0f - square * (1.0f / 6.0f) * (1.0f - square * 0.05f));
    const float cosine = 1.0f - square * 0.5f * (1.0f - square * (1.0f / 12.0f));
    const float mass = CART_KG + POLE_KG;
    const float force = (next_random(&cart->random) & 1u) ? FORCE_N : -FORCE_N;
    const float push = (force + POLE_KG * HALF_POLE_M * cart->spin * cart->spin * sine) / mass;
    const float turn = (GRAVITY * sine - cosine * push) /
                       (HALF_POLE_M * (4.0f / 3.0f - POLE_KG * cosine * cosine / mass));
    const float pull = push - POLE_KG * HALF_POLE_M * turn * cosine / mass;
    cart->x = cart->x + STEP_S * cart->v;
    cart->v = cart->v + STEP_S * pull;
    cart->angle = cart->angle + STEP_S * cart->spin;
    cart->spin = cart->spin + STEP_S * turn;
    cart->age += 1;
    cart->trace = (cart->trace ^ bits_of(cart->x)) * 1099511628211ull;
    cart->trace = (cart->trace ^ bits_of(cart->angle)) * 1099511628211ull;
    if (cart->x < -END_X || cart->x > END_X || cart->angle < -END_ANGLE ||
        cart->angle > END_ANGLE || cart->age == END_AGE) {
        begin_episode(cart);
    }
}

__host__ __device__ static void begin(Cart* cart, uint32_t number) {
    cart->random = number * 2654435761u + 1u;
    cart->random = cart->random == 0u ? 1u : cart->random;
    cart->trace = 1469598103934665603ull;
    begin_episode(cart);
}

__global__ void begin_all(Cart* carts, uint32_t n) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        begin(&carts[i], i);
    }
}

__global__ void step_all(Cart* carts, uint32_t n, uint32_t k) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        Cart cart = carts[i];
        for (uint32_t s = 0; s < k; ++s) {
            step(&cart);
        }
        carts[i] = cart;
    }
}

static uint64_t digest_of(const Cart* carts, uint32_t n) {
    uint64_t hash = 1469598103934665603ull;
    for (uint32_t i = 0; i < n; ++i) {
        hash = (hash ^ carts[i].trace) * 1099511628211ull;
        hash = (hash ^ carts[i].age) * 1099511628211ull;
    }
    return hash;
}

struct Result {
    uint64_t digest;
    double seconds;
};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static Result run(uint32_t n, uint32_t k, uint32_t steps, uint32_t launches, int has_midpoint) {
    EXPECT(n != 0 && k != 0 && steps % k == 0);
    Cart* device = NULL;
    CHECK(cudaMalloc(&device, n * sizeof(Cart)));
    const uint32_t threads = 128;
    const uint32_t blocks = (n + threads - 1) / threads;
    begin_all<<<blocks, threads>>>(device, n);
    CHECK(cudaDeviceSynchronize());
    const double begun = now_s();
    for (uint32_t i = 0; i < steps / k; ++i) {
        step_all<<<blocks, threads>>>(device, n, k);
        if (launches != 0 && (i + 1) % launches == 0) {
            CHECK(cudaDeviceSynchronize());
        }
        if (has_midpoint && i == steps / k / 2) {
            midpoint();
        }
    }
    CHECK(cudaDeviceSynchronize());
    const double ended = now_s();
    Cart* host = (Cart*)malloc(n * sizeof(Cart));
    EXPECT(host != NULL);
    CHECK(cudaMemcpy(host, device, n * sizeof(Cart), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device));
    const Result result = {digest_of(host, n), ended - begun};
    free(host);
    return result;
}

static uint64_t run_on_cpu(uint32_t n, uint32_t steps) {
    Cart* carts = (Cart*)calloc(n, sizeof(Cart));
    EXPECT(carts != NULL);
    for (uint32_t i = 0; i < n; ++i) {
        begin(&carts[i], i);
        for (uint32_t s = 0; s < steps; ++s) {
            step(&carts[i]);
        }
    }
    const uint64_t digest = digest_of(carts, n);
    free(carts);
    return digest;
}

static int run_all(void) {
    const uint32_t environments[] = {1, 33, 1000};
    const uint32_t ks[] = {1, 4, 16};
    const uint32_t steps = 480;
    uint64_t digests[3];
    for (int i = 0; i < 3; ++i) {
        digests[i] = run_on_cpu(environments[i], steps);
        for (int j = 0; j < 3; ++j) {
            const int is_middle = i == 2 && j == 1;
            const Result result = run(environments[i], ks[j], steps, 0, is_middle);
            if (result.digest != digests[i]) {
                fprintf(stderr, "n %u, k %u: %016llx, on the CPU %016llx\n", environments[i], ks[j],
                        (unsigned long long)result.digest, (unsigned long long)digests[i]);
                return 1;
            }
        }
    }
    EXPECT(digests[0] != digests[1] && digests[1] != digests[2]);
    return pass("cartpole");
}

int main(int argc, char** argv) {
    if (argc < 4) {
        return run_all();
    }
    const uint32_t n = (uint32_t)atoi(argv[1]);
    const uint32_t k = (uint32_t)atoi(argv[2]);
    const uint32_t steps = (uint32_t)atoi(argv[3]);
    const Result result = run(n, k, steps, argc > 4 ? (uint32_t)atoi(argv[4]) : 0, 1);
    printf("n %u k %u: %.0f steps/s, digest %016llx\n", n, k, (double)n * steps / result.seconds,
           (unsigned long long)result.digest);
    return 0;
}
