// Between the engine's plain structs and the peer service's protobuf messages, field by field.
//
// What comes from a peer is checked for the ranges of enums and counts; ids and sizes are claims
// that the engine and the workers judge. Pure functions.
#pragma once

#include "migration/engine/messages.h"
#include "migration/engine/needs.h"
#include "proto/base/result.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::transport {

control::MigrationId to_proto(engine::MigrationId id);
engine::MigrationId from_proto(const control::MigrationId& id);

control::EngineMessage to_proto(const engine::Message& message);
/// kInvalidArgument (`stream.message`) when no body or an unknown one is set.
Result<engine::Message> from_proto(const control::EngineMessage& message);

control::SessionNeeds to_proto(const engine::SessionNeeds& needs);
engine::SessionNeeds from_proto(const control::SessionNeeds& needs);
control::TargetCapabilities to_proto(const engine::TargetCapabilities& capabilities);
engine::TargetCapabilities from_proto(const control::TargetCapabilities& capabilities);
control::Finding to_proto(const engine::Finding& finding);
engine::Finding from_proto(const control::Finding& finding);

}  // namespace gantry::transport
