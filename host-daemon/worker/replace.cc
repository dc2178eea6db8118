#include "host-daemon/worker/replace.h"

namespace gantry::worker {
namespace {

class LinkEndpoint final : public replacement::Endpoint {
public:
    explicit LinkEndpoint(WorkerLink& link) : link_(link) {}
    Result<replacement::Answer> call(control::ToWorker request,
                                     std::span<const int> descriptors) override {
        return link_.call(std::move(request), descriptors);
    }
    void kill() override { link_.kill_now(); }

private:
    WorkerLink& link_;
};

}  // namespace

replacement::Outcome replace_worker(WorkerLink& old_worker, WorkerLink& fresh,
                                    const replacement::Options& options) {
    LinkEndpoint from(old_worker);
    LinkEndpoint to(fresh);
    return replacement::replace(from, to, options);
}

}  // namespace gantry::worker
