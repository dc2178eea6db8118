// `gantry inspect FILE`: a snapshot file as text or as JSON, read here and without a gantryd. Both
// read the file to its end, so that what is printed is printed of a whole file only; errors name
// the file, the offset and what to do.
#pragma once

#include <string>

#include "proto/base/result.h"

namespace gantry::cli {

/// Whether this means a file: it has a slash, or the ending of a snapshot, or a regular file is
/// there. A VM of the same name is still to be had by its uuid.
bool names_snapshot_file(const std::string& text);

/// For a person: whose snapshot it is, from when, and what is in it.
Result<std::string> snapshot_file_text(const std::string& path);
/// The whole file as one JSON object, but for the contents of images and memory.
Result<std::string> snapshot_file_json(const std::string& path);

}  // namespace gantry::cli
