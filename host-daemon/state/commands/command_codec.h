// Recorded commands and objects as bytes, as they travel in an object graph.
//
// Bytes from elsewhere are hostile: a CommandReader checks every size before it reads. Threads:
// none of its own; each reader belongs to one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/execution/objects/objects.h"

namespace gantry::state {

template <typename T>
void put(std::string& out, const T& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_command(std::string& out, const worker::RecordedCommand& command);

/// Reads values from the front of `bytes`, which must outlive it. Each call returns false, and
/// reads nothing more, when fewer bytes are left than it needs.
class CommandReader {
public:
    explicit CommandReader(std::string_view bytes) : rest_(bytes) {}

    template <typename T>
    bool get(T* value) {
        if (rest_.size() < sizeof(T)) {
            return false;
        }
        std::memcpy(value, rest_.data(), sizeof(T));
        rest_.remove_prefix(sizeof(T));
        return true;
    }
    bool get_bytes(std::uint64_t count, std::vector<std::byte>* out);
    bool get_command(worker::RecordedCommand* command);
    [[nodiscard]] bool empty() const { return rest_.empty(); }

private:
    std::string_view rest_;
};

/// One recorded command, alone.
[[nodiscard]] std::string encode_command(const worker::RecordedCommand& command);
/// False when `bytes` is not exactly one command.
bool decode_command(std::string_view bytes, worker::RecordedCommand* out);

}  // namespace gantry::state
