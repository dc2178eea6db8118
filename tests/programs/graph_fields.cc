// What stands in the object graphs of a snapshot's file, or could.
//
//   graph-fields --schema   every field of the graph's messages, as Message.field<tab>Message of
//                           what is in it, a line each
//   graph-fields FILE       every field that is set, as PATH<tab>Message.field<tab>value; PATH has
//                           the place in a repeated field, and the key of a map's entry
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/object_graph.pb.h"

namespace {

using namespace gantry;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string hex(const std::string& bytes) {
    std::string text;
    for (const char byte : bytes) {
        char two[3];
        std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
        text += two;
    }
    return text;
}

void print_schema(const Descriptor* message, std::set<const Descriptor*>* seen) {
    if (!seen->insert(message).second) {
        return;
    }
    for (int i = 0; i < message->field_count(); ++i) {
        const FieldDescriptor* field = message->field(i);
        const Descriptor* inside = field->is_map() ? nullptr : field->message_type();
        std::printf("%s.%s\t%s\n", message->name().c_str(), field->name().c_str(),
                    inside != nullptr ? inside->name().c_str() : "");
        if (inside != nullptr) {
            print_schema(inside, seen);
        }
    }
}

std::string value_text(const Message& message, const FieldDescriptor* field, int at) {
    const auto* reflection = message.GetReflection();
    const bool many = at >= 0;
    switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_STRING:
            return hex(many ? reflection->GetRepeatedString(message, field, at)
                            : reflection->GetString(message, field));
        case FieldDescriptor::CPPTYPE_BOOL:
            return std::to_string(many ? reflection->GetRepeatedBool(message, field, at)
                                       : reflection->GetBool(message, field));
        case FieldDescriptor::CPPTYPE_ENUM:
            return std::to_string(many ? reflection->GetRepeatedEnumValue(message, field, at)
                                       : reflection->GetEnumValue(message, field));
        case FieldDescriptor::CPPTYPE_FLOAT:
            return std::to_string(many ? reflection->GetRepeatedFloat(message, field, at)
                                       : reflection->GetFloat(message, field));
        case FieldDescriptor::CPPTYPE_INT32:
            return std::to_string(many ? reflection->GetRepeatedInt32(message, field, at)
                                       : reflection->GetInt32(message, field));
        case FieldDescriptor::CPPTYPE_UINT32:
            return std::to_string(many ? reflection->GetRepeatedUInt32(message, field, at)
                                       : reflection->GetUInt32(message, field));
        case FieldDescriptor::CPPTYPE_INT64:
            return std::to_string(many ? reflection->GetRepeatedInt64(message, field, at)
                                       : reflection->GetInt64(message, field));
        case FieldDescriptor::CPPTYPE_UINT64:
            return std::to_string(many ? reflection->GetRepeatedUInt64(message, field, at)
                                       : reflection->GetUInt64(message, field));
        default: return "a message";
    }
}

void print_set(const Message& message, const std::string& path) {
    std::vector<const FieldDescriptor*> fields;
    const auto* reflection = message.GetReflection();
    reflection->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
        const std::string name = message.GetDescriptor()->name() + "." + field->name();
        const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
        for (int i = 0; i < count; ++i) {
            const int at = field->is_repeated() ? i : -1;
            std::string place = path + "/" + field->name();
            if (field->is_map()) {
                const Message& entry = reflection->GetRepeatedMessage(message, field, i);
                place += "[" + value_text(entry, entry.GetDescriptor()->field(0), -1) + "]";
                std::printf("%s\t%s\t%s\n", place.c_str(), name.c_str(),
                            value_text(entry, entry.GetDescriptor()->field(1), -1).c_str());
                continue;
            }
            if (field->is_repeated()) {
                place += "[" + std::to_string(i) + "]";
            }
            if (field->message_type() == nullptr) {
                std::printf("%s\t%s\t%s\n", place.c_str(), name.c_str(),
                            value_text(message, field, at).c_str());
                continue;
            }
            std::printf("%s\t%s\t\n", place.c_str(), name.c_str());
            print_set(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                           : reflection->GetMessage(message, field),
                      place);
        }
    }
}

class Printer : public snapshot::SnapshotVisitor {
public:
    Result<void> on_header(const snapshot::SnapshotHeader&) override { return {}; }
    Result<void> on_graph(std::uint64_t, std::string_view bytes) override {
        snapshot::ObjectGraph graph;
        if (!graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
            return Error{Code::kInvalidArgument, "snapshot.graph", "it does not parse"};
        }
        print_set(graph, "");
        return {};
    }
    Result<void> on_image(std::span<const std::byte, 32>, std::span<const std::byte>) override {
        return {};
    }
    Result<bool> on_memory(const snapshot::StoredMemory&) override { return true; }
    Result<void> on_blocks(std::span<const snapshot::StoredBlock>) override { return {}; }
    Result<void> on_end(const snapshot::SnapshotSummary&) override { return {}; }
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: graph-fields --schema | FILE\n");
        return 2;
    }
    if (std::string_view(arguments[1]) == "--schema") {
        std::set<const Descriptor*> seen;
        print_schema(snapshot::ObjectGraph::descriptor(), &seen);
        return 0;
    }
    Printer printer;
    const auto read = snapshot::read_snapshot(std::string(arguments[1]), printer);
    if (!read.ok()) {
        std::fprintf(stderr, "%s: %s\n", arguments[1], read.error().to_string().c_str());
        return 1;
    }
    return 0;
}
