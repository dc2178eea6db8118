// Each file of this folder fills its part of the level's table.
#pragma once

#include "host-daemon/softgpu/engine/isa/lanes.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {

void fill_integer(HandlerTable& table);
void fill_integer_special(HandlerTable& table);
void fill_float(HandlerTable& table);
void fill_half(HandlerTable& table);
void fill_approximate(HandlerTable& table);
void fill_compare(HandlerTable& table);
void fill_convert(HandlerTable& table);
void fill_move(HandlerTable& table);
void fill_memory(HandlerTable& table);
void fill_ordered(HandlerTable& table);
void fill_matrix(HandlerTable& table);

[[nodiscard]] const HandlerTable& handler_table();

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
