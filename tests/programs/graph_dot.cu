// Trap: a graph is drawn into a file of the program's own, whatever is in it and however it came
// about.
#include "program.h"

__global__ void first_kernel(unsigned* word) { *word += 1; }
__global__ void second_kernel(unsigned* word) { *word *= 2; }

static char g_text[1 << 16];

static void CUDART_CB called(void*) {}

static int count(const char* what) {
    int found = 0;
    for (const char* at = g_text; (at = strstr(at, what)) != nullptr; ++at) {
        ++found;
    }
    return found;
}

static void draw(cudaGraph_t graph, unsigned flags) {
    char path[] = "/tmp/graph_dot.XXXXXX";
    int descriptor = mkstemp(path);
    EXPECT(descriptor >= 0);
    close(descriptor);
    CHECK(cudaGraphDebugDotPrint(graph, path, flags));
    FILE* file = fopen(path, "r");
    EXPECT(file != nullptr);
    memset(g_text, 0, sizeof g_text);
    EXPECT(fread(g_text, 1, sizeof g_text - 1, file) > 0);
    fclose(file);
    unlink(path);
    EXPECT(strncmp(g_text, "digraph", 7) == 0);
    EXPECT(count("{") == count("}"));
}

int main() {
    unsigned* word;
    cudaStream_t stream;
    cudaGraph_t captured, graph;
    cudaGraphNode_t child, last;
    cudaHostNodeParams host = {};
    host.fn = called;
    CHECK(cudaMalloc((void**)&word, sizeof *word));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMemsetAsync(word, 0, sizeof *word, stream));
    first_kernel<<<1, 1, 0, stream>>>(word);
    second_kernel<<<2, 3, 0, stream>>>(word);
    CHECK(cudaStreamEndCapture(stream, &captured));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddChildGraphNode(&child, graph, nullptr, 0, captured));
    CHECK(cudaGraphAddHostNode(&last, graph, &child, 1, &host));

    for (int half = 0; half < 2; ++half) {
        draw(captured, 0);
        EXPECT(count("->") == 2);
        EXPECT(count("first_kernel") == 1 && count("second_kernel") == 1);
        draw(graph, cudaGraphDebugDotFlagsVerbose);
        EXPECT(count("->") >= 1);
        EXPECT(count("first_kernel") >= 1);
        EXPECT_STATUS(cudaGraphDebugDotPrint(graph, "/nowhere/graph.dot", 0),
                      cudaErrorOperatingSystem);
        cudaGetLastError();
        if (half == 0) {
            midpoint();
        }
    }
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(captured));
    return pass("graph_dot");
}
