#include "host-daemon/execution/objects/objects.h"

#include <algorithm>

#include "proto/base/mutex.h"

namespace gantry::worker {

bool ObjectTable::insert(Object object) {
    if (object.kind() == HandleKind::kInvalid) {
        return false;
    }
    WriterLock lock(mutex_);
    if (objects_.size() >= count_max_) {
        return false;
    }
    if (object.order == 0) {
        object.order = next_order_++;
    } else {
        next_order_ = std::max(next_order_, object.order + 1);
    }
    const std::uint64_t handle = object.handle;
    const auto [at, is_new] = objects_.emplace(handle, std::move(object));
    if (is_new) {
        ++counts_[at->second.kind()];
        by_native_.emplace(at->second.native, handle);
        if (at->second.parent != 0) {
            by_parent_.emplace(at->second.parent, handle);
        }
    }
    return is_new;
}

void ObjectTable::forget(Index& index, std::uint64_t key, std::uint64_t handle) {
    const auto [first, last] = index.equal_range(key);
    for (auto at = first; at != last; ++at) {
        if (at->second == handle) {
            index.erase(at);
            return;
        }
    }
}

void ObjectTable::move_to_parent(Object& object, std::uint64_t parent) {
    if (object.parent != 0) {
        forget(by_parent_, object.parent, object.handle);
    }
    object.parent = parent;
    if (parent != 0) {
        by_parent_.emplace(parent, object.handle);
    }
}

std::size_t ObjectTable::count_kind(HandleKind kind) const {
    ReaderLock lock(mutex_);
    const auto count = counts_.find(kind);
    return count == counts_.end() ? 0 : count->second;
}

std::vector<std::uint64_t> ObjectTable::natives_of(HandleKind kind) const {
    ReaderLock lock(mutex_);
    std::vector<std::uint64_t> natives;
    for (const auto& [handle, object] : objects_) {
        if (object.kind() == kind) {
            natives.push_back(object.native);
        }
    }
    return natives;
}

std::uint64_t ObjectTable::native(std::uint64_t handle, HandleKind kind) const {
    if (cuda::handle_kind(handle) != kind) {
        return 0;
    }
    ReaderLock lock(mutex_);
    const auto object = objects_.find(handle);
    return object == objects_.end() ? 0 : object->second.native;
}

std::uint64_t ObjectTable::handle_of(std::uint64_t native, HandleKind kind) const {
    ReaderLock lock(mutex_);
    const Object* found = nullptr;
    const auto [first, last] = by_native_.equal_range(native);
    for (auto at = first; at != last; ++at) {
        const Object& object = objects_.at(at->second);
        if (object.kind() == kind && (found == nullptr || object.order < found->order)) {
            found = &object;
        }
    }
    return found != nullptr ? found->handle : 0;
}

bool ObjectTable::contains(std::uint64_t handle) const {
    ReaderLock lock(mutex_);
    return objects_.contains(handle);
}

bool ObjectTable::is_configured(std::uint64_t handle) const {
    ReaderLock lock(mutex_);
    const auto object = objects_.find(handle);
    return object != objects_.end() && !object->second.configuration.empty();
}

std::optional<Object> ObjectTable::get(std::uint64_t handle) const {
    ReaderLock lock(mutex_);
    const auto object = objects_.find(handle);
    return object == objects_.end() ? std::nullopt : std::optional<Object>(object->second);
}

void ObjectTable::configure(std::uint64_t handle, std::uint64_t key, RecordedCommand command) {
    WriterLock lock(mutex_);
    if (const auto object = objects_.find(handle); object != objects_.end()) {
        object->second.configuration[key] = std::move(command);
    }
}

void ObjectTable::set_native(std::uint64_t handle, std::uint64_t native) {
    WriterLock lock(mutex_);
    if (const auto object = objects_.find(handle); object != objects_.end()) {
        forget(by_native_, object->second.native, handle);
        object->second.native = native;
        by_native_.emplace(native, handle);
    }
}

std::uint64_t ObjectTable::charged(std::uint64_t handle, std::uint32_t what) const {
    ReaderLock lock(mutex_);
    const auto object = objects_.find(handle);
    if (object == objects_.end() || !object->second.charges.contains(what)) {
        return 0;
    }
    return object->second.charges.at(what)->bytes();
}

void ObjectTable::charge(std::uint64_t handle, std::uint32_t what, const MemoryChargePtr& more) {
    WriterLock lock(mutex_);
    const auto object = objects_.find(handle);
    if (object == objects_.end() || more == nullptr) {
        return;
    }
    const auto [at, is_new] = object->second.charges.emplace(what, more);
    if (!is_new) {
        at->second->add(*more);
    }
}

void ObjectTable::set_charge(std::uint64_t handle, std::uint32_t what, std::uint64_t bytes) {
    WriterLock lock(mutex_);
    const auto object = objects_.find(handle);
    if (object != objects_.end() && object->second.charges.contains(what)) {
        object->second.charges.at(what)->set(bytes);
    }
}

std::uint64_t ObjectTable::charged_kind(HandleKind kind) const {
    ReaderLock lock(mutex_);
    std::uint64_t bytes = 0;
    for (const auto& [handle, object] : objects_) {
        for (const auto& [what, charge] : object.charges) {
            bytes += object.kind() == kind ? charge->bytes() : 0;
        }
    }
    return bytes;
}

void ObjectTable::restore_record(std::uint64_t handle, std::uint64_t order, std::uint64_t parent,
                                 std::map<std::uint64_t, RecordedCommand> configuration) {
    WriterLock lock(mutex_);
    if (const auto object = objects_.find(handle); object != objects_.end()) {
        object->second.order = order;
        move_to_parent(object->second, parent);
        object->second.configuration = std::move(configuration);
        next_order_ = std::max(next_order_, order + 1);
    }
}

void ObjectTable::set_parent(std::uint64_t handle, std::uint64_t parent) {
    WriterLock lock(mutex_);
    if (const auto object = objects_.find(handle); object != objects_.end()) {
        move_to_parent(object->second, parent);
    }
}

std::uint64_t ObjectTable::parent_of(std::uint64_t handle) const {
    ReaderLock lock(mutex_);
    const auto object = objects_.find(handle);
    return object == objects_.end() ? 0 : object->second.parent;
}

std::uint64_t ObjectTable::root_of(std::uint64_t handle) const {
    constexpr int kDepthMax = 8;
    for (int depth = 0; depth < kDepthMax; ++depth) {
        const std::uint64_t parent = parent_of(handle);
        if (parent == 0) {
            break;
        }
        handle = parent;
    }
    return handle;
}

bool ObjectTable::erase(std::uint64_t handle) {
    WriterLock lock(mutex_);
    if (!objects_.contains(handle)) {
        return false;
    }
    std::vector<std::uint64_t> gone{handle};
    while (!gone.empty()) {
        const auto object = objects_.find(gone.back());
        gone.pop_back();
        if (object == objects_.end()) {
            continue;
        }
        const auto [first, last] = by_parent_.equal_range(object->first);
        for (auto child = first; child != last; ++child) {
            gone.push_back(child->second);
        }
        forget(by_native_, object->second.native, object->first);
        if (object->second.parent != 0) {
            forget(by_parent_, object->second.parent, object->first);
        }
        --counts_[object->second.kind()];
        objects_.erase(object);
    }
    return true;
}

void ObjectTable::clear() {
    WriterLock lock(mutex_);
    objects_.clear();
    by_native_.clear();
    by_parent_.clear();
    counts_.clear();
}

std::vector<Object> ObjectTable::list(const std::function<bool(const Object&)>& filter) const {
    std::vector<Object> found;
    {
        ReaderLock lock(mutex_);
        for (const auto& [handle, object] : objects_) {
            if (filter(object)) {
                found.push_back(object);
            }
        }
    }
    std::sort(found.begin(), found.end(),
              [](const Object& a, const Object& b) { return a.order < b.order; });
    return found;
}

std::vector<Object> ObjectTable::list_kind(HandleKind kind) const {
    return list([kind](const Object& object) { return object.kind() == kind; });
}

std::size_t ObjectTable::size() const {
    ReaderLock lock(mutex_);
    return objects_.size();
}

}  // namespace gantry::worker
