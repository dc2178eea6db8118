// What the pages of `gantry` have in common: each is one text that needs nothing else, light or
// dark as the reader's system is.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gantry::cli {

/// For text and for attributes of XML; what that does not allow is left out.
[[nodiscard]] std::string escaped(const std::string& text);

using Facts = std::vector<std::pair<std::string, std::string>>;

/// `body` is HTML already.
[[nodiscard]] std::string page(const std::string& title, const Facts& facts,
                               const std::string& body);

/// A picture of the class `timeline`, with what it draws; its ground is the page's.
[[nodiscard]] std::string picture(const std::string& title, double width, double height,
                                  const std::string& drawn);

}  // namespace gantry::cli
