#include "host-daemon/supervisor/workers/worker_set.h"

#include "proto/snapshot/fingerprint.h"

namespace gantry::supervisor {

void WorkerSet::add(std::shared_ptr<Worker> worker) {
    const MutexLock lock(mutex_);
    const engine::PartId part = worker->part();
    staging_.erase(part);
    workers_[part] = std::move(worker);
}

std::shared_ptr<Worker> WorkerSet::remove(engine::PartId part) {
    const MutexLock lock(mutex_);
    staging_.erase(part);
    const auto found = workers_.find(part);
    if (found == workers_.end()) {
        return nullptr;
    }
    std::shared_ptr<Worker> worker = std::move(found->second);
    workers_.erase(found);
    return worker;
}

std::shared_ptr<Worker> WorkerSet::find(engine::PartId part) const {
    const MutexLock lock(mutex_);
    const auto found = workers_.find(part);
    return found == workers_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Worker>> WorkerSet::all() const {
    const MutexLock lock(mutex_);
    std::vector<std::shared_ptr<Worker>> out;
    for (const auto& [part, worker] : workers_) {
        out.push_back(worker);
    }
    return out;
}

bool WorkerSet::empty() const {
    const MutexLock lock(mutex_);
    return workers_.empty();
}

Result<std::shared_ptr<Worker>> WorkerSet::need(engine::PartId part) const {
    if (auto worker = find(part)) {
        return worker;
    }
    return Error{Code::kNotFound, "worker.gone",
                 "the session has no worker " + std::to_string(part.value)};
}

Result<std::shared_ptr<Staging>> WorkerSet::staging(const std::shared_ptr<Worker>& worker) {
    const auto known = [&] {
        const MutexLock lock(mutex_);
        const auto found = staging_.find(worker->part());
        return found == staging_.end() ? nullptr : found->second;
    };
    if (auto staging = known()) {
        return staging;
    }
    const MutexLock attaching(attaching_);
    if (auto staging = known()) {
        return staging;
    }
    GANTRY_ASSIGN(std::shared_ptr<Staging> made,
                  Staging::create(kBatchBlocks * snapshot::kBlockBytes, kStagingSlots));
    control::ToWorker stale;  // of a gantryd that was restarted in mid-move
    stale.mutable_detach_arena()->set_arena_id(kStagingArena);
    (void)worker->call(std::move(stale), kQuickCall);
    control::ToWorker request;
    request.mutable_attach_arena()->set_arena_id(kStagingArena);
    request.mutable_attach_arena()->set_bytes(made->bytes());
    const int fd = made->fd();
    GANTRY_TRY(worker->call(std::move(request), kQuickCall, {&fd, 1}));
    const MutexLock lock(mutex_);
    const auto present = workers_.find(worker->part());
    if (present != workers_.end() && present->second == worker) {  // Not replaced meanwhile.
        staging_[worker->part()] = made;
    }
    return made;
}

void WorkerSet::drop_staging() {
    const MutexLock attaching(attaching_);
    std::map<engine::PartId, std::shared_ptr<Staging>> dropped;
    {
        const MutexLock lock(mutex_);
        dropped.swap(staging_);
    }
    for (const auto& [part, staging] : dropped) {
        if (const auto worker = find(part)) {
            control::ToWorker request;
            request.mutable_detach_arena()->set_arena_id(kStagingArena);
            (void)worker->call(std::move(request), kQuickCall);
        }
    }
}

}  // namespace gantry::supervisor
