#include "host-daemon/softgpu/streams/enqueue.h"

#include "proto/cuda/settings.h"

namespace gantry::softgpu {
namespace {

CaptureBuilder* g_builder = nullptr;  // Set before the driver is ready.

class OperationWork final : public Work {
public:
    explicit OperationWork(OperationPtr operation) : operation_(std::move(operation)) {}
    void run() override { operation_->run(); }
    void skip(CUresult error) override { operation_->skip(error); }

private:
    OperationPtr operation_;
};

}  // namespace

void set_capture_builder(CaptureBuilder& builder) { g_builder = &builder; }

CaptureBuilder& capture_builder() { return *g_builder; }

CUresult enqueue(const std::shared_ptr<Stream>& stream, OperationPtr operation) {
    if (capturing(stream)) {
        return capture_builder().add(stream, std::move(operation));
    }
    GANTRY_CU(refuse_legacy_during_capture(stream));
    Scheduler::instance().submit(stream, std::make_unique<OperationWork>(std::move(operation)));
    return CUDA_SUCCESS;
}

CUresult launched(CUresult queued, const std::shared_ptr<Stream>& stream, Context& context) {
    static const bool blocks = cuda::launches_block();  // Read once, as native does.
    return blocks && queued == CUDA_SUCCESS && !capturing(stream) ? wait_for(stream, context)
                                                                  : queued;
}

}  // namespace gantry::softgpu
