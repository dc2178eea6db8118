// Commands are written field by field, in the order of put_command.
#include "host-daemon/state/commands/command_codec.h"

namespace gantry::state {

void put_command(std::string& out, const worker::RecordedCommand& command) {
    put(out, command.op);
    put(out, command.lane);
    put(out, static_cast<std::uint32_t>(command.args.size()));
    put(out, static_cast<std::uint32_t>(command.trailing.size()));
    put(out, command.context);
    out.append(reinterpret_cast<const char*>(command.args.data()), command.args.size());
    out.append(reinterpret_cast<const char*>(command.trailing.data()), command.trailing.size());
}

bool CommandReader::get_bytes(std::uint64_t count, std::vector<std::byte>* out) {
    if (count > rest_.size()) {
        return false;
    }
    out->resize(count);
    if (count != 0) {
        std::memcpy(out->data(), rest_.data(), count);
    }
    rest_.remove_prefix(count);
    return true;
}

bool CommandReader::get_command(worker::RecordedCommand* command) {
    std::uint32_t args = 0;
    std::uint32_t trailing = 0;
    return get(&command->op) && get(&command->lane) && get(&args) && get(&trailing) &&
           get(&command->context) && get_bytes(args, &command->args) &&
           get_bytes(trailing, &command->trailing);
}

std::string encode_command(const worker::RecordedCommand& command) {
    std::string out;
    put_command(out, command);
    return out;
}

bool decode_command(std::string_view bytes, worker::RecordedCommand* out) {
    CommandReader reader(bytes);
    return reader.get_command(out) && reader.empty();
}

}  // namespace gantry::state
