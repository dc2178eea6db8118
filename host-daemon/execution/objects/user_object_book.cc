#include "host-daemon/execution/objects/user_object_book.h"

#include <algorithm>

namespace gantry::worker {

UserObjectBook::UserObjectBook(ObjectTable& objects) : core_(std::make_shared<Core>()) {
    const MutexLock lock(core_->mutex);
    core_->objects = &objects;
}

UserObjectBook::~UserObjectBook() {
    const MutexLock lock(core_->mutex);
    core_->objects = nullptr;
    core_->offer = nullptr;
}

UserObjectBook::Entry* UserObjectBook::Core::find(CUuserObject object) {
    const auto entry = std::find_if(entries.begin(), entries.end(), [object](const auto& each) {
        return each.second.native == object && !each.second.is_due;
    });
    return entry == entries.end() ? nullptr : &entry->second;
}

void UserObjectBook::Core::end(std::uint64_t handle) {
    const auto entry = entries.find(handle);
    if (entry == entries.end() || objects == nullptr) {
        return;
    }
    const Destructor destructor = entry->second.destructor;
    for (auto& [graph, held] : graphs) {
        held.erase(entry->second.native);
    }
    entries.erase(entry);
    objects->erase(handle);
    if (offer) {
        offer(destructor);
    }
}

void UserObjectBook::run(void* argument) {
    const std::unique_ptr<Argument> self(static_cast<Argument*>(argument));
    Core& core = *self->core;
    const MutexLock lock(core.mutex);
    const auto entry = core.entries.find(self->handle);
    if (entry == core.entries.end() || entry->second.id != self->id) {
        return;
    }
    entry->second.is_due = true;
    if (core.is_open) {
        core.end(self->handle);
    }
}

UserObjectBook::Made UserObjectBook::prepare(std::uint64_t handle, const Destructor& destructor) {
    const MutexLock lock(core_->mutex);
    const std::uint64_t id = core_->next_id++;
    Entry entry;
    entry.id = id;
    entry.destructor = destructor;
    core_->entries[handle] = entry;
    return {run, new Argument{core_, handle, id}};
}

void UserObjectBook::add(const Made& made, CUuserObject native, unsigned count, unsigned held) {
    const MutexLock lock(core_->mutex);
    Entry& entry = core_->entries[static_cast<Argument*>(made.argument)->handle];
    entry.native = native;
    entry.count = count;
    entry.held = held;
}

void UserObjectBook::drop(const Made& made) {
    const std::unique_ptr<Argument> argument(static_cast<Argument*>(made.argument));
    const MutexLock lock(core_->mutex);
    core_->entries.erase(argument->handle);
}

bool UserObjectBook::release(CUuserObject object, unsigned count) {
    const MutexLock lock(core_->mutex);
    Entry* entry = core_->find(object);
    if (entry == nullptr || count == 0 || entry->count < count) {
        return false;
    }
    entry->count -= count;
    return true;
}

void UserObjectBook::retain(CUuserObject object, unsigned count) {
    const MutexLock lock(core_->mutex);
    if (Entry* entry = core_->find(object); entry != nullptr) {
        entry->count += count;
    }
}

CUgraph UserObjectBook::outermost(CUgraph graph) const {
    if (core_->objects == nullptr) {
        return graph;
    }
    const std::uint64_t handle =
        core_->objects->handle_of(reinterpret_cast<std::uint64_t>(graph), HandleKind::kGraph);
    const auto root = handle == 0 ? nullptr
                                  : core_->objects->native_as<CUgraph>(
                                        core_->objects->root_of(handle), HandleKind::kGraph);
    return root != nullptr ? root : graph;
}

bool UserObjectBook::release(CUgraph graph, CUuserObject object, unsigned count) {
    const MutexLock lock(core_->mutex);
    const auto held = core_->graphs.find(outermost(graph));
    if (held == core_->graphs.end()) {
        return false;
    }
    const auto reference = held->second.find(object);
    if (reference == held->second.end() || count == 0 || reference->second < count) {
        return false;
    }
    reference->second -= count;
    if (reference->second == 0) {
        held->second.erase(reference);
    }
    return true;
}

void UserObjectBook::retain(CUgraph graph, CUuserObject object, unsigned count) {
    const MutexLock lock(core_->mutex);
    core_->graphs[outermost(graph)][object] += count;
}

void UserObjectBook::note_clone(CUgraph graph, CUgraph made) {
    const MutexLock lock(core_->mutex);
    const auto held = core_->graphs.find(outermost(graph));
    if (held == core_->graphs.end()) {
        return;
    }
    const std::map<CUuserObject, unsigned> references = held->second;
    for (const auto& [object, count] : references) {
        core_->graphs[outermost(made)][object] += count;
    }
}

void UserObjectBook::forget_graph(CUgraph graph) {
    const MutexLock lock(core_->mutex);
    core_->graphs.erase(graph);
}

std::vector<UserObjectBook::Reference> UserObjectBook::of_guest() const {
    const MutexLock lock(core_->mutex);
    std::vector<Reference> out;
    for (const auto& [handle, entry] : core_->entries) {
        out.push_back({handle, entry.count});
    }
    return out;
}

std::vector<UserObjectBook::Reference> UserObjectBook::of_graph(CUgraph graph) const {
    const MutexLock lock(core_->mutex);
    std::vector<Reference> out;
    const auto held = core_->graphs.find(graph);
    if (held == core_->graphs.end()) {
        return out;
    }
    for (const auto& [handle, entry] : core_->entries) {
        const auto reference = held->second.find(entry.native);
        if (reference != held->second.end() && !entry.is_due) {
            out.push_back({handle, reference->second});
        }
    }
    return out;
}

CUuserObject UserObjectBook::native_of(std::uint64_t handle) const {
    const MutexLock lock(core_->mutex);
    const auto entry = core_->entries.find(handle);
    return entry == core_->entries.end() ? nullptr : entry->second.native;
}

int UserObjectBook::set_count(std::uint64_t handle, unsigned count) {
    const MutexLock lock(core_->mutex);
    const auto entry = core_->entries.find(handle);
    if (entry == core_->entries.end()) {
        return 0;
    }
    const auto more = static_cast<std::int64_t>(count) - entry->second.count;
    entry->second.count = count;
    return static_cast<int>(more);
}

unsigned UserObjectBook::silence(std::uint64_t handle) {
    const MutexLock lock(core_->mutex);
    const auto entry = core_->entries.find(handle);
    if (entry == core_->entries.end()) {
        return 0;
    }
    const unsigned left = entry->second.count + entry->second.held;
    core_->entries.erase(entry);
    return left;
}

std::vector<std::pair<CUuserObject, unsigned>> UserObjectBook::take_held() {
    const MutexLock lock(core_->mutex);
    std::vector<std::pair<CUuserObject, unsigned>> out;
    for (auto& [handle, entry] : core_->entries) {
        if (entry.held != 0) {
            out.emplace_back(entry.native, entry.held);
            entry.held = 0;
        }
    }
    return out;
}

void UserObjectBook::set_offer(Offer offer) {
    const MutexLock lock(core_->mutex);
    core_->offer = std::move(offer);
}

void UserObjectBook::shut() {
    const MutexLock lock(core_->mutex);
    core_->is_open = false;
}

void UserObjectBook::open() {
    const MutexLock lock(core_->mutex);
    core_->is_open = true;
    std::vector<std::uint64_t> due;
    for (const auto& [handle, entry] : core_->entries) {
        if (entry.is_due) {
            due.push_back(handle);
        }
    }
    for (const std::uint64_t handle : due) {
        core_->end(handle);
    }
}

}  // namespace gantry::worker
