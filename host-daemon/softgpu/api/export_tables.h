// Connects the shared start-up tables (proto/cuda/dark) to this driver.
#pragma once

namespace gantry::softgpu {

/// Installs the callbacks; done at the first cuGetExportTable. Idempotent, any thread.
void prepare_export_tables();

}  // namespace gantry::softgpu
