#include "checkpoint.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "checkpoint/header.hpp"
#include "checkpoint/mapped_file.hpp"
#include "digest.hpp"
#include "error.hpp"
#include "json.hpp"
#include "text/small_file.hpp"

namespace ftmpi {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::size_t kIndexLimit = std::size_t{512} << 20;

/// The vision tower is never computed, so a type this program cannot read is no obstacle there.
bool is_vision(std::string_view name) {
    return name.starts_with("model.visual.") || name.starts_with("visual.");
}

/// "a, b, c and 12 more".
std::string listing(const std::vector<std::string>& names, std::size_t limit = 20) {
    std::string out;
    for (std::size_t i = 0; i < names.size() && i < limit; ++i) out += (i ? ", " : "") + names[i];
    if (names.size() > limit) out += " and " + std::to_string(names.size() - limit) + " more";
    return out;
}

/// model.safetensors.index.json: which shard holds which tensor.
class Index {
public:
    explicit Index(const std::filesystem::path& path) : file_(path, kIndexLimit) {
        const JsonObject map = file_.root().object("weight_map");
        shard_of_.reserve(map.size());
        std::unordered_map<std::string_view, int> numbers;
        map.each([&](std::string_view name, simdjson::dom::element value) {
            std::string_view file;
            if (value.get(file))
                refuse("tensor " + in_quotes(name) + " is mapped to something that is not a file name");
            const auto [known, fresh] = numbers.try_emplace(file, static_cast<int>(files_.size()));
            if (fresh) {
                if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos ||
                    file.find('\0') != file.npos)
                    refuse("maps tensor " + in_quotes(name) + " to " + in_quotes(file) +
                           ", which is not a plain file name in the same directory");
                files_.emplace_back(file);
            }
            shard_of_.emplace(name, Place{known->second, false});
        });
        if (files_.empty()) refuse("weight_map is empty");
    }

    std::string sha256() const { return hex(ftmpi::sha256(file_.bytes())); }
    const std::vector<std::string>& files() const { return files_; }
    std::optional<std::uint64_t> total_size() const {
        const auto metadata = file_.root().member("metadata");
        std::uint64_t total = 0;
        return metadata && !(*metadata)["total_size"].get(total) ? std::optional(total) : std::nullopt;
    }

    /// Notes that shard `file` holds `name`; refuses it when the index says otherwise.
    void mark_found(std::string_view name, int file) {
        const auto it = shard_of_.find(name);
        const auto shard = files_[static_cast<std::size_t>(file)];
        if (it == shard_of_.end())
            refuse("does not list tensor " + in_quotes(name) + ", which " + shard + " holds");
        if (it->second.file != file)
            refuse("maps tensor " + in_quotes(name) + " to " +
                   files_[static_cast<std::size_t>(it->second.file)] + ", but " + shard + " holds it");
        it->second.found = true;
    }

    void check_all_found() const {
        std::vector<std::string> missing;
        for (const auto& [name, place] : shard_of_)
            if (!place.found)
                missing.push_back(in_quotes(name) + " (" + files_[static_cast<std::size_t>(place.file)] +
                                  ")");
        std::sort(missing.begin(), missing.end());
        if (!missing.empty())
            refuse("lists tensors that the shard it names does not hold: " + listing(missing, 5));
    }

private:
    struct Place {
        int file;
        bool found;
    };

    [[noreturn]] void refuse(const std::string& what) const {
        throw Error(Exit::bad_input, file_.root().file() + ": " + what);
    }

    JsonFile file_;  // the names below point into it
    std::unordered_map<std::string_view, Place> shard_of_;
    std::vector<std::string> files_;
};

}  // namespace

struct Checkpoint::State {
    std::filesystem::path directory;
    std::vector<std::filesystem::path> files;
    std::vector<MappedFile> mappings;
    std::map<std::string, TensorView, std::less<>> tensors;
    std::uint64_t tensor_bytes = 0;
    std::uint64_t data_bytes = 0;  // with the tensors that are left out
    std::vector<std::string> warnings;
    std::string index_sha256;

    /// Names ending in .safetensors in the directory, in order.
    std::vector<std::string> safetensors_names() const {
        std::vector<std::string> names;
        std::error_code error;
        for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
             it.increment(error))
            if (it->path().extension() == ".safetensors") names.push_back(it->path().filename().string());
        std::sort(names.begin(), names.end());
        return names;
    }

    void warn_of_ignored(const std::vector<std::string>& used, const std::string& why) {
        std::vector<std::string> ignored;
        for (auto& name : safetensors_names())
            if (std::find(used.begin(), used.end(), name) == used.end()) ignored.push_back(name);
        if (!ignored.empty()) warnings.push_back("ignored, " + why + ": " + listing(ignored));
    }

    /// Maps one shard and adds its tensors; `index` is null for a single file.
    void add_file(const std::string& name, Index* index) {
        const int number = static_cast<int>(files.size());
        files.push_back(directory / name);
        const auto& mapping = mappings.emplace_back(files.back());
        auto header = read_header(mapping);
        for (auto& entry : header.entries) {
            if (index) index->mark_found(entry.name, number);
            data_bytes += entry.end - entry.begin;
            if (!entry.dtype) {
                const auto what = "tensor " + in_quotes(entry.name) + " has the unknown dtype " +
                                  in_quotes(entry.dtype_name);
                if (!is_vision(entry.name)) throw Error(Exit::bad_input, files.back().string() + ": " + what);
                warnings.push_back(what + " (" + name + "); it is a vision tensor and not needed");
                continue;
            }
            TensorView view;
            view.name = entry.name;
            view.dtype = *entry.dtype;
            view.shape = std::move(entry.shape);
            view.data = mapping.data() + header.data_offset + entry.begin;
            view.bytes = static_cast<std::size_t>(entry.end - entry.begin);
            view.file = number;
            tensor_bytes += view.bytes;
            tensors.emplace_hint(tensors.end(), std::move(entry.name), std::move(view));
        }
        if (!index) index_sha256 = hex(sha256(header.text));
    }

    void open_sharded(const std::filesystem::path& index_path) {
        Index index(index_path);
        index_sha256 = index.sha256();
        std::vector<std::string> missing;
        for (const auto& name : index.files()) {
            std::error_code error;
            if (std::filesystem::exists(directory / name, error)) continue;
            if (std::filesystem::is_symlink(directory / name, error)) refuse_open(directory / name, ENOENT);
            missing.push_back(name);
        }
        if (!missing.empty())
            throw Error(Exit::bad_input,
                        index_path.string() + " names " + counted(index.files().size(), "file") + ", " +
                            std::to_string(missing.size()) +
                            (missing.size() == 1 ? " of which is missing: " : " of which are missing: ") +
                            listing(missing),
                        "an incomplete download, or the index of another save of the model?");
        mappings.reserve(index.files().size());
        for (const auto& name : index.files()) add_file(name, &index);
        index.check_all_found();
        if (index.total_size() && *index.total_size() != data_bytes)
            warnings.push_back(std::string(kIndexName) + " says total_size " +
                               std::to_string(*index.total_size()) + ", the shards hold " +
                               counted(data_bytes, "byte") + " of tensors");
        warn_of_ignored(index.files(), "not named by " + std::string(kIndexName));
    }

    void open_single() {
        const std::string single(kSingleName);
        if (std::filesystem::symlink_status(directory / single).type() ==
            std::filesystem::file_type::not_found) {
            const auto names = safetensors_names();
            const auto what =
                directory.string() + " has neither " + std::string(kIndexName) + " nor " + single;
            if (names.empty())
                throw Error(Exit::bad_input, what,
                            "is this the folder of a Hugging Face checkpoint in safetensors form?");
            throw Error(Exit::bad_input, what + "; it holds " + listing(names),
                        "an incomplete download? The index says which files belong together");
        }
        add_file(single, nullptr);
        warn_of_ignored({single}, "only " + single + " is read when there is no index");
    }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::filesystem::path& directory) {
    std::error_code error;
    const auto kind = std::filesystem::status(directory, error).type();
    if (kind == std::filesystem::file_type::not_found) refuse_open(directory, ENOENT);
    if (kind != std::filesystem::file_type::directory)
        throw Error(Exit::bad_input,
                    directory.string() + " is not a directory" +
                        (error ? " that can be read: " + error.message() : ""),
                    "name the folder of the checkpoint, not a file in it");
    auto state = std::make_unique<State>();
    state->directory = directory;
    const auto index_path = directory / kIndexName;
    // A dangling link counts as present: an index that cannot be read must not turn into "no index".
    if (std::filesystem::symlink_status(index_path, error).type() != std::filesystem::file_type::not_found)
        state->open_sharded(index_path);
    else state->open_single();
    for (auto& warning : state->warnings) warning = printable(warning);
    return Checkpoint(std::move(state));
}

const std::filesystem::path& Checkpoint::directory() const { return state_->directory; }
const std::vector<std::filesystem::path>& Checkpoint::files() const { return state_->files; }
const std::map<std::string, TensorView, std::less<>>& Checkpoint::tensors() const { return state_->tensors; }
std::uint64_t Checkpoint::tensor_bytes() const { return state_->tensor_bytes; }
const std::vector<std::string>& Checkpoint::warnings() const { return state_->warnings; }
const std::string& Checkpoint::index_sha256() const { return state_->index_sha256; }

const TensorView* Checkpoint::find(std::string_view name) const {
    const auto it = state_->tensors.find(name);
    return it == state_->tensors.end() ? nullptr : &it->second;
}

const TensorView& Checkpoint::at(std::string_view name) const {
    if (const auto* tensor = find(name)) return *tensor;
    throw Error(Exit::bad_input, state_->directory.string() + " holds no tensor " + in_quotes(name));
}

void Checkpoint::check_unchanged() const {
    for (const auto& mapping : state_->mappings)
        if (!(stamp_of(mapping.path()) == mapping.stamp()))
            throw Error(Exit::bad_input,
                        mapping.path().string() + " was changed or replaced while it was being read");
}

void Checkpoint::check_contents(const std::byte* data) const {
    for (const auto& mapping : state_->mappings) {
        if (!mapping.holds(data)) continue;
        if (!(mapping.stamp_now() == mapping.stamp()))
            throw Error(Exit::bad_input,
                        mapping.path().string() +
                            " was written to while it was in use: the text from here on would be "
                            "that of other weights",
                        "the requests finished before are kept; put the checkpoint right; a run then goes on "
                        "with --resume");
        return;
    }
}

void Checkpoint::drop_pages(const std::byte* data, std::size_t bytes) const noexcept {
    if (!data || bytes == 0) return;
    // Rounded outwards: a neighbour's page that is still wanted comes back from the page cache.
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const auto begin = address / page * page;
    const auto end = (address + bytes + page - 1) / page * page;
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void Checkpoint::drop_pages() const noexcept {
    for (const auto& mapping : state_->mappings) drop_pages(mapping.data(), mapping.size());
}

}  // namespace ftmpi
