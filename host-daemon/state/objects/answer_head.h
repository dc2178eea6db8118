// How an answer that a lane still waits for travels in an object graph (object_graph_codec.h).
#pragma once

#include <cstdint>

namespace gantry::state {

/// Answers carry more than the schema's payload: packed in front of it.
struct AnswerHead {
    std::uint32_t flags = 0;
    std::uint32_t payload_bytes = 0;
    std::uint64_t bulk_offset = 0;
    std::uint64_t bulk_bytes = 0;
};

}  // namespace gantry::state
