// The forms in which a timeline is written. Each is one text that needs nothing else: no file, no
// network, no script.
#pragma once

#include <string>

#include "migration/cli/timeline.h"

namespace gantry::cli {

/// A picture of lanes and curves, light or dark as the reader's system is.
[[nodiscard]] std::string timeline_svg(const Timeline& timeline);
/// A page with the picture, the facts and every stamp.
[[nodiscard]] std::string timeline_html(const Timeline& timeline);
/// For Perfetto or chrome://tracing: the Trace Event Format's JSON.
[[nodiscard]] std::string timeline_chrome(const Timeline& timeline);
/// For a terminal.
[[nodiscard]] std::string timeline_text(const Timeline& timeline);

}  // namespace gantry::cli
