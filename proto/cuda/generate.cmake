# Generates the code that follows from the API table, and lets a library compile it into itself.
#
# Every generated header is included as "proto/cuda/gen/NAME.h". A target that includes one calls
# gantry_use_cuda_gen(target); a target that also compiles generated sources calls one or more of
# the functions below instead. Generated sources are compiled into the library that uses them, not
# into a static library: their weak definitions must meet the strong ones in one link.
set(GANTRY_CUDA_GEN_DIR ${CMAKE_BINARY_DIR}/proto/cuda/gen)
set(GANTRY_CUDA_GEN_FILES
    opcodes.h op_flags.h op_table.h op_table.cc impl.h exports.h exports.cc exports.map
    refused_weak.cc proc_table.h proc_table.cc driver_api_table.h driver_api_table.cc
    wire_structs.h wire_layout.txt shim_marshal.h shim_marshal.cc shim_rules.cc worker_dispatch.h
    worker_dispatch.cc fuzz_grammar.h trace.h trace.cc)
list(TRANSFORM GANTRY_CUDA_GEN_FILES PREPEND ${GANTRY_CUDA_GEN_DIR}/)
file(GLOB GANTRY_CUDA_GEN_INPUTS CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/proto/cuda/driver_api/*.api ${CMAKE_SOURCE_DIR}/proto/codegen/*.py
    ${CMAKE_SOURCE_DIR}/proto/cuda/wire_hand.h ${CMAKE_SOURCE_DIR}/proto/cuda/handle_bits.h)

# The stamp is what ninja compares: files whose text did not change keep their time.
add_custom_command(
    OUTPUT ${GANTRY_CUDA_GEN_DIR}/stamp
    BYPRODUCTS ${GANTRY_CUDA_GEN_FILES}
    COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/proto/codegen/generate.py
            ${CMAKE_SOURCE_DIR}/proto/cuda/driver_api ${GANTRY_CUDA_GEN_DIR}
    COMMAND ${CMAKE_COMMAND} -E touch ${GANTRY_CUDA_GEN_DIR}/stamp
    DEPENDS ${GANTRY_CUDA_GEN_INPUTS}
    COMMENT "Generating from the CUDA API table")
add_custom_target(gantry_cuda_gen DEPENDS ${GANTRY_CUDA_GEN_DIR}/stamp)

function(gantry_use_cuda_gen target)
  add_dependencies(${target} gantry_cuda_gen)
  target_link_libraries(${target} PRIVATE gantry_cuda_abi)
endfunction()

function(gantry_add_cuda_gen_sources target)
  gantry_use_cuda_gen(${target})
  foreach(name ${ARGN})
    target_sources(${target} PRIVATE ${CMAKE_BINARY_DIR}/proto/cuda/gen/${name})
    set_source_files_properties(${CMAKE_BINARY_DIR}/proto/cuda/gen/${name}
        PROPERTIES GENERATED TRUE)
  endforeach()
endfunction()

# For the shim and the soft driver: exported symbols, weak refusals, cuGetProcAddress lookup. The
# target's include path must hold cuda_impl_hooks.h (see README.md).
function(gantry_use_cuda_entry_points target)
  gantry_add_cuda_gen_sources(${target} exports.cc refused_weak.cc proc_table.cc op_table.cc)
  set_target_properties(${target} PROPERTIES
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
      LINK_DEPENDS ${CMAKE_BINARY_DIR}/proto/cuda/gen/stamp)
  # An entry point found by cuGetProcAddress must be this image's own, whatever else is loaded.
  target_link_options(${target} PRIVATE
      -Wl,--version-script=${CMAKE_BINARY_DIR}/proto/cuda/gen/exports.map
      -Wl,-Bsymbolic-functions)
endfunction()

# For the shim: cuda_impl functions of all calls whose marshalling is generated. Needs the session.
function(gantry_use_cuda_shim_marshal target)
  gantry_add_cuda_gen_sources(${target} shim_marshal.cc)
endfunction()

# ... and of those around which the guest has rules (guest-shim/driver/core/call_rules.h).
function(gantry_use_cuda_shim_rules target)
  gantry_add_cuda_gen_sources(${target} shim_rules.cc)
endfunction()

# For the worker: gantry::worker::dispatch and weak handlers. Needs DriverApi (below).
function(gantry_use_cuda_worker_dispatch target)
  gantry_add_cuda_gen_sources(${target} worker_dispatch.cc op_table.cc)
endfunction()

# For who loads a CUDA driver: gantry::driver::DriverApi.
function(gantry_use_cuda_driver_api target)
  gantry_add_cuda_gen_sources(${target} driver_api_table.cc)
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# The page that says what of the API is implemented: `ninja cuda_coverage` writes it from the table
# and from what is built at that time.
add_custom_target(cuda_coverage
    COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/proto/codegen/coverage.py
            ${CMAKE_SOURCE_DIR}/proto/cuda/driver_api ${CMAKE_BINARY_DIR}/proto/cuda/COVERAGE.md
            shim=${CMAKE_BINARY_DIR}/guest-shim soft=${CMAKE_BINARY_DIR}/host-daemon/softgpu
            worker=${CMAKE_BINARY_DIR}/host-daemon/worker
    COMMENT "Writing ${CMAKE_BINARY_DIR}/proto/cuda/COVERAGE.md")

foreach(name generator limits table)
  add_test(NAME cuda_codegen_${name}
      COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/proto/codegen/tests/test_${name}.py)
endforeach()
