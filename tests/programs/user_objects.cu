// Trap: a user object's destructor runs in the program, once, when the last reference is gone: the
// program's own, a graph's, its clone's, an executable copy's; before and after a snapshot.
#include "program.h"

static volatile int destroyed[8];

static void note(void* which) { __sync_fetch_and_add(&destroyed[(uintptr_t)which], 1); }

static cudaUserObject_t create(uintptr_t which, unsigned count) {
    cudaUserObject_t object;
    CHECK(cudaUserObjectCreate(&object, (void*)which, note, count, cudaUserObjectNoDestructorSync));
    return object;
}

static void wait_for(int which) {
    for (int tries = 0; destroyed[which] == 0 && tries < 10000; ++tries) {
        usleep(1000);
    }
    EXPECT(destroyed[which] == 1);
}

static cudaGraph_t graph_of(unsigned* word) {
    cudaGraph_t graph;
    cudaGraphNode_t node;
    cudaMemsetParams params = {};
    params.dst = word;
    params.value = 5;
    params.elementSize = 4;
    params.width = 1;
    params.height = 1;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemsetNode(&node, graph, NULL, 0, &params));
    return graph;
}

static void run(cudaGraphExec_t exec, unsigned* word) {
    unsigned seen = 0;
    CHECK(cudaMemset(word, 0, 4));
    CHECK(cudaGraphLaunch(exec, 0));
    CHECK(cudaMemcpy(&seen, word, 4, cudaMemcpyDeviceToHost));
    EXPECT(seen == 5);
}

int main() {
    unsigned* word;
    CHECK(cudaMalloc((void**)&word, 4));
    cudaUserObject_t bad;
    EXPECT_STATUS(cudaUserObjectCreate(&bad, NULL, note, 1, 0), cudaErrorInvalidValue);
    EXPECT_STATUS(cudaUserObjectCreate(&bad, NULL, note, 0, cudaUserObjectNoDestructorSync),
                  cudaErrorInvalidValue);

    // 0: the program's own references.
    const cudaUserObject_t own = create(0, 2);
    CHECK(cudaUserObjectRetain(own, 1));
    CHECK(cudaUserObjectRelease(own, 2));
    // 1: given to a graph, of which an executable copy is made; the graph goes.
    const cudaUserObject_t given = create(1, 1);
    const cudaGraph_t first = graph_of(word);
    CHECK(cudaGraphRetainUserObject(first, given, 1, cudaGraphUserObjectMove));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, first, 0));
    CHECK(cudaGraphDestroy(first));
    // 2: of a graph and of its clone.
    const cudaUserObject_t shared = create(2, 1);
    const cudaGraph_t second = graph_of(word);
    cudaGraph_t clone;
    CHECK(cudaGraphRetainUserObject(second, shared, 2, 0));
    CHECK(cudaGraphReleaseUserObject(second, shared, 1));
    CHECK(cudaGraphClone(&clone, second));
    CHECK(cudaUserObjectRelease(shared, 1));
    CHECK(cudaGraphDestroy(second));
    // 3: of a child graph's parent.
    const cudaUserObject_t inner = create(3, 1);
    const cudaGraph_t child = graph_of(word);
    cudaGraph_t parent;
    cudaGraphNode_t node;
    CHECK(cudaGraphRetainUserObject(child, inner, 1, cudaGraphUserObjectMove));
    CHECK(cudaGraphCreate(&parent, 0));
    CHECK(cudaGraphAddChildGraphNode(&node, parent, NULL, 0, child));
    CHECK(cudaGraphDestroy(child));
    // 4: gone before the snapshot; its destructor runs once all the same.
    const cudaUserObject_t gone = create(4, 1);
    CHECK(cudaUserObjectRelease(gone, 1));

    midpoint();
    wait_for(4);
    for (int i = 0; i < 4; ++i) {
        EXPECT(destroyed[i] == 0);
    }
    run(exec, word);
    CHECK(cudaUserObjectRetain(own, 2));
    CHECK(cudaUserObjectRelease(own, 2));
    EXPECT(destroyed[0] == 0);
    CHECK(cudaUserObjectRelease(own, 1));
    wait_for(0);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaDeviceSynchronize());
    wait_for(1);
    EXPECT(destroyed[2] == 0 && destroyed[3] == 0);
    CHECK(cudaGraphDestroy(clone));
    wait_for(2);
    CHECK(cudaGraphDestroy(parent));
    wait_for(3);
    usleep(20000);
    for (int i = 0; i < 5; ++i) {
        EXPECT(destroyed[i] == 1);
    }
    return pass("user_objects");
}
