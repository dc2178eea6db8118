#include "host-daemon/supervisor/snapshots/saved_states.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "proto/snapshot/container.h"

namespace gantry::supervisor {
namespace {

constexpr std::array<std::pair<SavedFate, const char*>, 3> kFateNames{{
    {SavedFate::kUsed, "used"},
    {SavedFate::kOlder, "older"},
    {SavedFate::kUnwritten, "unwritten"},
}};

const char* name_of(SavedFate fate) { return kFateNames.at(static_cast<std::size_t>(fate)).second; }

std::string text_of(const wire::SaveMark& mark) {
    return fmt::format("{:016x}{:016x}", mark.high, mark.low);
}

nlohmann::json to_json(const snapshot::BlockSetDigest& sum) {
    return {sum.block_count, sum.sum.low, sum.sum.high};
}

snapshot::BlockSetDigest sum_from(const nlohmann::json& json) {
    snapshot::BlockSetDigest out;
    out.block_count = json.at(0).get<std::uint64_t>();
    out.sum = {json.at(1).get<std::uint64_t>(), json.at(2).get<std::uint64_t>()};
    return out;
}

Error not_to_be_had(SavedFate fate) {
    switch (fate) {
        case SavedFate::kUsed:
            return {Code::kFailedPrecondition, "save.used",
                    "a guest has gone on with the GPU's state of this memory before: a file of "
                    "libvirt's can be restored once"};
        case SavedFate::kOlder:
            return {Code::kFailedPrecondition, "save.older",
                    "the VM was saved again after this memory was: the state of its GPU is kept "
                    "for the newest file alone"};
        case SavedFate::kUnwritten: break;
    }
    return {Code::kFailedPrecondition, "save.unwritten",
            "the GPU's state could not be written when this memory was saved; the log of that "
            "moment says why"};
}

Error no_record(const std::string& path, const std::string& why) {
    return {Code::kDataLoss, "save.record", path + " is damaged: " + why};
}

Error cannot_write(const std::string& path) {
    return {Code::kUnavailable, "save.folder",
            "cannot write " + path + ": " + std::strerror(errno) +
                "; saved states lie in daemon.state_directory"};
}

}  // namespace

struct SavedStates::Record {
    std::optional<SavedState> newest;
    std::vector<std::pair<std::string, SavedFate>> fates;  ///< By mark, the newest last.

    void add(const wire::SaveMark& mark, SavedFate fate) {
        std::erase_if(fates, [&](const auto& one) { return one.first == text_of(mark); });
        fates.emplace_back(text_of(mark), fate);
        if (fates.size() > kFatesMax) {
            fates.erase(fates.begin());
        }
    }
};

SavedStates::Paths SavedStates::paths(const std::string& vm, const wire::SaveMark& mark) const {
    const std::string stem = folder_ + "/" + vm + "/" + text_of(mark);
    return {stem + ".gsnap", stem + ".region"};
}

Result<SavedStates::Paths> SavedStates::begin(const std::string& vm, const wire::SaveMark& mark) {
    const MutexLock lock(mutex_);
    for (const std::string& path : {folder_, folder_ + "/" + vm}) {
        if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
            return cannot_write(path);
        }
    }
    GANTRY_ASSIGN(const Record record, load(vm));
    // What a gantryd left that ended meanwhile.
    const std::string kept = record.newest ? text_of(record.newest->mark) : std::string();
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/" + vm, ignored)) {
        if (entry.path().filename() != "record.json" && entry.path().stem() != kept) {
            std::filesystem::remove(entry.path(), ignored);
        }
    }
    return paths(vm, mark);
}

Result<void> SavedStates::keep(const std::string& vm, const SavedState& state) {
    const MutexLock lock(mutex_);
    GANTRY_ASSIGN(Record record, load(vm));
    const auto before = std::exchange(record.newest, state);
    const bool is_another = before && before->mark != state.mark;
    if (is_another) {
        record.add(before->mark, SavedFate::kOlder);
    }
    GANTRY_TRY(store(vm, record));
    if (is_another) {
        remove_files(vm, before->mark);
    }
    return {};
}

Result<SavedState> SavedStates::find(const std::string& vm, const wire::SaveMark& mark) const {
    const MutexLock lock(mutex_);
    GANTRY_ASSIGN(const Record record, load(vm));
    if (record.newest && record.newest->mark == mark) {
        return *record.newest;
    }
    for (const auto& [text, fate] : record.fates) {
        if (text == text_of(mark)) {
            return not_to_be_had(fate);
        }
    }
    return Error{Code::kFailedPrecondition, "save.unknown",
                 "no state of a GPU on this host belongs to this memory: it was saved on another "
                 "host, or while no gantryd looked"};
}

Result<void> SavedStates::retire(const std::string& vm, const wire::SaveMark& mark,
                                 SavedFate fate) {
    const MutexLock lock(mutex_);
    GANTRY_ASSIGN(Record record, load(vm));
    if (record.newest && record.newest->mark == mark) {
        record.newest.reset();
    }
    record.add(mark, fate);
    GANTRY_TRY(store(vm, record));
    remove_files(vm, mark);
    return {};
}

void SavedStates::remove_files(const std::string& vm, const wire::SaveMark& mark) {
    const Paths old = paths(vm, mark);
    ::unlink(old.session.c_str());
    ::unlink(old.region.c_str());
}

Result<SavedStates::Record> SavedStates::load(const std::string& vm) const {
    const std::string path = folder_ + "/" + vm + "/record.json";
    Record record;
    std::ifstream file(path);
    if (!file) {
        return record;
    }
    try {
        const auto json = nlohmann::json::parse(file);
        if (json.contains("newest")) {
            const auto& from = json["newest"];
            SavedState state;
            state.mark = {from.at("mark").at(0).get<std::uint64_t>(),
                          from.at("mark").at(1).get<std::uint64_t>()};
            state.seed = {from.at("seed").at(0).get<std::uint64_t>(),
                          from.at("seed").at(1).get<std::uint64_t>()};
            state.epoch.value = from.at("epoch").get<std::uint64_t>();
            state.channel_count = from.at("channel_count").get<std::uint32_t>();
            state.region = {sum_from(from.at("guest")), sum_from(from.at("host"))};
            record.newest = state;
        }
        for (const auto& one : json.at("fates")) {
            const auto name = one.at(1).get<std::string>();
            const auto found = std::find_if(kFateNames.begin(), kFateNames.end(),
                                            [&](const auto& each) { return each.second == name; });
            if (found == kFateNames.end()) {
                return no_record(path, "no fate is called " + name);
            }
            record.fates.emplace_back(one.at(0).get<std::string>(), found->first);
        }
    } catch (const nlohmann::json::exception& error) {
        return no_record(path, error.what());
    }
    return record;
}

Result<void> SavedStates::store(const std::string& vm, const Record& record) {
    nlohmann::json json{{"fates", nlohmann::json::array()}};
    for (const auto& [mark, fate] : record.fates) {
        json["fates"].push_back({mark, name_of(fate)});
    }
    if (record.newest) {
        const SavedState& state = *record.newest;
        json["newest"] = {{"mark", {state.mark.low, state.mark.high}},
                          {"seed", {state.seed.low, state.seed.high}},
                          {"epoch", state.epoch.value},
                          {"channel_count", state.channel_count},
                          {"guest", to_json(state.region.guest)},
                          {"host", to_json(state.region.host)}};
    }
    const std::string folder = folder_ + "/" + vm;
    for (const std::string& path : {folder_, folder}) {
        if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
            return cannot_write(path);
        }
    }
    GANTRY_ASSIGN(snapshot::AtomicFile file, snapshot::AtomicFile::create(folder + "/record.json"));
    const std::string text = json.dump(2) + "\n";
    if (::write(file.fd(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        return cannot_write(file.path());
    }
    return file.commit();
}

}  // namespace gantry::supervisor
