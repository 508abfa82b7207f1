"""Written by generate_abi.py from the public headers: constants, structs and functions of the C ABI."""
import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t
from ctypes import c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any


class Struct(ctypes.Structure):
    """Sets the field size, where there is one, to what this file knows of the struct."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self._fields_[0][0] == "size":
            self.size = ctypes.sizeof(self)

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name, *_ in self._fields_ if name != "size")
        return f"{type(self).__name__}({', '.join(values)})"


LKV_VERSION_MAJOR = 0
LKV_VERSION_MINOR = 1
LKV_VERSION_PATCH = 0
LKV_OK = 0
LKV_E_INVALID = 1
LKV_E_UNSUPPORTED = 2
LKV_E_VERSION = 3
LKV_E_NO_MEMORY = 10
LKV_E_NO_BLOCKS = 11
LKV_E_WORKSPACE = 12
LKV_E_NEVER_FITS = 13
LKV_E_WAIT_PENDING = 14
LKV_E_NO_HOST_SPACE = 15
LKV_E_IO = 16
LKV_E_CUDA = 20
LKV_E_CUBLAS = 21
LKV_E_BUSY = 30
LKV_E_STALE_HIT = 31
LKV_E_NOT_FOUND = 32
LKV_E_INTERNAL = 90
LKV_DTYPE_F32 = 1
LKV_DTYPE_F16 = 2
LKV_DTYPE_BF16 = 3
LKV_DTYPE_F8E4M3 = 4
LKV_DEVICE_CPU = -1
LKV_ISA_AUTO = 0
LKV_ISA_SCALAR = 1
LKV_ISA_AVX2 = 2
LKV_ISA_AVX512 = 3
LKV_LOG_ERROR = 1
LKV_LOG_INFO = 2
LKV_LOG_DEBUG = 3
LKV_ROPE_NONE = 0
LKV_ROPE_INTERLEAVED = 1
LKV_ROPE_HALF = 2
LKV_KIND_MLA = 0
LKV_KIND_LATENT_GQA = 1
LKV_FORMAT_BF16 = 1
LKV_FORMAT_FP8 = 2
LKV_FORMAT_INT8 = 3
LKV_FORMAT_NVFP4 = 4
LKV_ENCODE_INT8_SYMMETRIC = 1
LKV_ENCODE_NVFP4_FIXED_OUTER = 2
LKV_ENCODE_NVFP4_FOUR_OVER_SIX = 4
LKV_ENCODE_ROTATE = 8
LKV_OWNER_LIBRARY = 0
LKV_OWNER_ENGINE = 1
LKV_POOL_METADATA_ONLY = 1
LKV_POOL_NO_CACHE = 2
LKV_POOL_NO_PARTIAL = 4
LKV_POOL_EVENTS = 8
LKV_PLANE_DEVICE = 0
LKV_PLANE_HOST = 1
LKV_FAULT_NONE = 0
LKV_FAULT_NON_FINITE = 1
LKV_FAULT_SLOT = 2
LKV_FAULT_LENGTH = 3
LKV_FAULT_BLOCK = 4
LKV_KEY_ADAPTER = 1
LKV_KEY_SALT = 2
LKV_KEY_MULTIMODAL = 3
LKV_KEY_USER = 16
LKV_PROMPT_NO_MATCH = 1
LKV_PROMPT_NO_PARTIAL = 2
LKV_PROMPT_NO_PUBLISH = 4
LKV_ADMIT_WHOLE = 1
LKV_STEP_TABLE_TAIL = 1
LKV_RESET_FORCE = 1
LKV_EVENT_STORED = 1
LKV_EVENT_REMOVED = 2
LKV_EVENT_CLEARED = 3
LKV_TIER_DEVICE = 0
LKV_TIER_HOST = 1
LKV_REMOVED_EVICTED = 1
LKV_REMOVED_DETACHED = 2
LKV_REMOVED_DROPPED = 3
LKV_WEIGHTS_ROTATE = 1
LKV_APPEND_CHECKED = 1
LKV_Q_LATENT = 0
LKV_Q_HEAD = 1
LKV_OUT_LATENT = 0
LKV_OUT_HEAD = 1
LKV_PLAN_BATCH_INVARIANT = 1
LKV_ATTEND_CHECKED = 1
LKV_GATHER_STORED_BASIS = 1
LKV_ROUTER_TRACE = 1
LKV_ROUTER_V3 = 2
LKV_ROUTER_NORMALISE = 1
LKV_GATE_MEAN = 0
LKV_GATE_MAX = 1
LKV_FALLBACK_NONE = 0
LKV_FALLBACK_FNV1A = 1
LKV_FALLBACK_LCG = 2
LKV_FALLBACK_BUDDY = 3
LKV_FALLBACK_SHARED = 4
LKV_COMBINE_ADD = 1
LKV_COMBINE_SUBSTITUTE = 2
LKV_COMBINE_STAT_ONLY = 3
LKV_SLOTS_LRU = 0
LKV_SLOTS_LFU = 1
LKV_SLOTS_LEAST_STALE = 2
LKV_SLOT_KEY_TOKEN = 1
LKV_SLOT_KEY_FREE = 2
LKV_SLOT_MISS = 0
LKV_SLOT_READY = 1
LKV_SLOT_FILLING = 2
LKV_SLOT_NEW = 3
LKV_SLOT_REFUSED = 4
LKV_SLOTS_PIN = 1
LKV_SLOTS_CREATE = 2
LKV_SLOTS_FILL = 4
LKV_MOE_UTILISATION_LOW = 1
LKV_MOE_UTILISATION_HIGH = 2
LKV_MOE_TRIGGER_LOW = 4
LKV_MOE_TRIGGER_HIGH = 8
LKV_MOE_OVERLOADED = 16

lkv_log_fn = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class lkv_tensor(Struct):
    data: Any
    dtype: int
    ndim: int
    shape: Any
    stride: Any
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_uint32),
        ("ndim", c_uint32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class lkv_context_desc(Struct):
    size: int
    device: int
    num_threads: int
    isa: int
    flags: int
    log: Any
    log_user: Any
    _fields_ = [
        ("size", c_size_t),
        ("device", c_int32),
        ("num_threads", c_uint32),
        ("isa", c_uint32),
        ("flags", c_uint32),
        ("log", lkv_log_fn),
        ("log_user", c_void_p),
    ]


class lkv_context_info(Struct):
    size: int
    device: int
    num_threads: int
    isa: int
    compute_capability: int
    num_sms: int
    l2_bytes: int
    memory_bytes: int
    smem_bytes_per_block: int
    name: Any
    _fields_ = [
        ("size", c_size_t),
        ("device", c_int32),
        ("num_threads", c_uint32),
        ("isa", c_uint32),
        ("compute_capability", c_uint32),
        ("num_sms", c_uint32),
        ("l2_bytes", c_uint32),
        ("memory_bytes", c_uint64),
        ("smem_bytes_per_block", c_uint64),
        ("name", c_char * 128),
    ]


class lkv_model_desc(Struct):
    size: int
    num_layers: int
    num_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    rope_style: int
    yarn_original_positions: int
    rope_theta: float
    yarn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_mscale: float
    yarn_mscale_all_dim: float
    softmax_scale: float
    rope_factors: Any
    _fields_ = [
        ("size", c_size_t),
        ("num_layers", c_uint32),
        ("num_heads", c_uint32),
        ("latent_dim", c_uint32),
        ("rope_dim", c_uint32),
        ("nope_dim", c_uint32),
        ("v_dim", c_uint32),
        ("rope_style", c_uint32),
        ("yarn_original_positions", c_uint32),
        ("rope_theta", c_double),
        ("yarn_factor", c_double),
        ("yarn_beta_fast", c_double),
        ("yarn_beta_slow", c_double),
        ("yarn_mscale", c_double),
        ("yarn_mscale_all_dim", c_double),
        ("softmax_scale", c_double),
        ("rope_factors", c_void_p),
    ]


class lkv_plane_desc(Struct):
    bytes_per_block: int
    placement: int
    tag: int
    _fields_ = [
        ("bytes_per_block", c_uint64),
        ("placement", c_uint32),
        ("tag", c_uint32),
    ]


class lkv_pool_desc(Struct):
    size: int
    kind: int
    format: int
    encode_flags: int
    owner: int
    flags: int
    tokens_per_block: int
    latent_dim: int
    rope_dim: int
    rope_style: int
    num_kv_heads: int
    num_layers: int
    max_seqs: int
    num_blocks: int
    fallback_headroom: float
    memory: Any
    memory_bytes: int
    block_stride_bytes: int
    layer_stride_bytes: int
    layer_memory: Any
    fixed_outer: Any
    planes: Any
    model_fingerprint: Any
    num_planes: int
    value_latent_dim: int
    num_events: int
    host_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_uint32),
        ("format", c_uint32),
        ("encode_flags", c_uint32),
        ("owner", c_uint32),
        ("flags", c_uint32),
        ("tokens_per_block", c_uint32),
        ("latent_dim", c_uint32),
        ("rope_dim", c_uint32),
        ("rope_style", c_uint32),
        ("num_kv_heads", c_uint32),
        ("num_layers", c_uint32),
        ("max_seqs", c_uint32),
        ("num_blocks", c_uint64),
        ("fallback_headroom", c_double),
        ("memory", c_void_p),
        ("memory_bytes", c_uint64),
        ("block_stride_bytes", c_uint64),
        ("layer_stride_bytes", c_uint64),
        ("layer_memory", c_void_p),
        ("fixed_outer", c_void_p),
        ("planes", POINTER(lkv_plane_desc)),
        ("model_fingerprint", c_void_p),
        ("num_planes", c_uint32),
        ("value_latent_dim", c_uint32),
        ("num_events", c_uint64),
        ("host_blocks", c_uint64),
    ]


class lkv_block_info(Struct):
    size: int
    record_bytes: int
    block_bytes: int
    total_bytes: int
    codes_offset: int
    codes_bytes: int
    scales_offset: int
    scales_bytes: int
    rope_offset: int
    rope_bytes: int
    base_blocks: int
    headroom_blocks: int
    alignment: int
    format_version: int
    value_offset: int
    head_bytes: int
    _fields_ = [
        ("size", c_size_t),
        ("record_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("codes_offset", c_uint64),
        ("codes_bytes", c_uint64),
        ("scales_offset", c_uint64),
        ("scales_bytes", c_uint64),
        ("rope_offset", c_uint64),
        ("rope_bytes", c_uint64),
        ("base_blocks", c_uint64),
        ("headroom_blocks", c_uint64),
        ("alignment", c_uint32),
        ("format_version", c_uint32),
        ("value_offset", c_uint64),
        ("head_bytes", c_uint64),
    ]


class lkv_pool_layout(Struct):
    size: int
    base: Any
    block_stride_bytes: int
    record_bytes: int
    memory_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("base", c_void_p),
        ("block_stride_bytes", c_uint64),
        ("record_bytes", c_uint64),
        ("memory_blocks", c_uint64),
    ]


class lkv_faults(Struct):
    size: int
    count: int
    first_kind: int
    reserved: int
    first_token: int
    first_index: int
    _fields_ = [
        ("size", c_size_t),
        ("count", c_uint64),
        ("first_kind", c_uint32),
        ("reserved", c_uint32),
        ("first_token", c_uint64),
        ("first_index", c_int64),
    ]


class lkv_key(Struct):
    data: Any
    begin: int
    end: int
    tag: int
    bytes: int
    _fields_ = [
        ("data", c_void_p),
        ("begin", c_uint64),
        ("end", c_uint64),
        ("tag", c_uint32),
        ("bytes", c_uint32),
    ]


class lkv_prompt(Struct):
    size: int
    tokens: Any
    keys: Any
    num_tokens: int
    num_keys: int
    flags: int
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_void_p),
        ("keys", POINTER(lkv_key)),
        ("num_tokens", c_uint64),
        ("num_keys", c_uint32),
        ("flags", c_uint32),
    ]


class lkv_match(Struct):
    size: int
    hit_tokens: int
    partial_hit_tokens: int
    hit_blocks: int
    ticket: Any
    host_hit_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("hit_tokens", c_uint64),
        ("partial_hit_tokens", c_uint64),
        ("hit_blocks", c_uint64),
        ("ticket", c_uint64 * 4),
        ("host_hit_blocks", c_uint64),
    ]


class lkv_admission(Struct):
    size: int
    needed: int
    free_now: int
    free_after_fence: int
    hit_tokens: int
    partial_hit_tokens: int
    num_blocks: int
    host_hit_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("needed", c_uint64),
        ("free_now", c_uint64),
        ("free_after_fence", c_uint64),
        ("hit_tokens", c_uint64),
        ("partial_hit_tokens", c_uint64),
        ("num_blocks", c_uint64),
        ("host_hit_blocks", c_uint64),
    ]


class lkv_admit_args(Struct):
    size: int
    match: Any
    max_tokens: int
    room_tokens: int
    flags: int
    priority: int
    priority_until: int
    watermark_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("match", POINTER(lkv_match)),
        ("max_tokens", c_uint64),
        ("room_tokens", c_uint64),
        ("flags", c_uint32),
        ("priority", c_uint32),
        ("priority_until", c_uint64),
        ("watermark_blocks", c_uint64),
    ]


class lkv_seq_info(Struct):
    size: int
    length: int
    committed: int
    room: int
    num_blocks: int
    hit_tokens: int
    max_tokens: int
    host_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("length", c_uint64),
        ("committed", c_uint64),
        ("room", c_uint64),
        ("num_blocks", c_uint64),
        ("hit_tokens", c_uint64),
        ("max_tokens", c_uint64),
        ("host_blocks", c_uint64),
    ]


class lkv_step(Struct):
    size: int
    num_seqs: int
    flags: int
    seqs: Any
    num_new: Any
    tokens: Any
    row_begin: Any
    num_rows: Any
    block_table: Any
    seq_lens: Any
    q_indptr: Any
    slots: Any
    positions: Any
    slots_capacity: int
    table_width: int
    table_stride: int
    failed_row: int
    reserved: int
    _fields_ = [
        ("size", c_size_t),
        ("num_seqs", c_uint32),
        ("flags", c_uint32),
        ("seqs", c_void_p),
        ("num_new", c_void_p),
        ("tokens", c_void_p),
        ("row_begin", c_void_p),
        ("num_rows", c_void_p),
        ("block_table", c_void_p),
        ("seq_lens", c_void_p),
        ("q_indptr", c_void_p),
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("slots_capacity", c_uint64),
        ("table_width", c_uint32),
        ("table_stride", c_uint32),
        ("failed_row", c_uint32),
        ("reserved", c_uint32),
    ]


class lkv_event(Struct):
    seq: int
    kind: int
    tier: int
    reason: int
    remaining_copies: int
    tokens_offset: int
    keys_offset: int
    num_tokens: int
    keys_bytes: int
    parent: Any
    digest: Any
    _fields_ = [
        ("seq", c_uint64),
        ("kind", c_uint32),
        ("tier", c_uint32),
        ("reason", c_uint32),
        ("remaining_copies", c_uint32),
        ("tokens_offset", c_uint64),
        ("keys_offset", c_uint64),
        ("num_tokens", c_uint32),
        ("keys_bytes", c_uint32),
        ("parent", c_uint8 * 32),
        ("digest", c_uint8 * 32),
    ]


class lkv_event_batch(Struct):
    size: int
    from_seq: int
    events: Any
    capacity: int
    data: Any
    data_capacity: int
    num_events: int
    data_bytes: int
    next_seq: int
    lost: int
    _fields_ = [
        ("size", c_size_t),
        ("from_seq", c_uint64),
        ("events", POINTER(lkv_event)),
        ("capacity", c_uint64),
        ("data", c_void_p),
        ("data_capacity", c_uint64),
        ("num_events", c_uint64),
        ("data_bytes", c_uint64),
        ("next_seq", c_uint64),
        ("lost", c_uint64),
    ]


class lkv_snapshot_args(Struct):
    size: int
    path: Any
    secret: Any
    secret_bytes: int
    flags: int
    _fields_ = [
        ("size", c_size_t),
        ("path", c_char_p),
        ("secret", c_void_p),
        ("secret_bytes", c_uint32),
        ("flags", c_uint32),
    ]


class lkv_snapshot_info(Struct):
    size: int
    file_bytes: int
    blocks: int
    blocks_loaded: int
    _fields_ = [
        ("size", c_size_t),
        ("file_bytes", c_uint64),
        ("blocks", c_uint64),
        ("blocks_loaded", c_uint64),
    ]


class lkv_pool_stats(Struct):
    size: int
    blocks_total: int
    blocks_base: int
    blocks_free: int
    blocks_idle: int
    blocks_in_use: int
    blocks_pending: int
    blocks_lent: int
    blocks_reserved: int
    blocks_cached: int
    seqs_live: int
    tokens_live: int
    waste_tokens: int
    hit_tokens: int
    partial_hit_tokens: int
    prompt_tokens: int
    evicted_blocks: int
    copied_blocks: int
    published_blocks: int
    metadata_allocated_bytes: int
    metadata_active_bytes: int
    metadata_resident_bytes: int
    longest_free_run: int
    host_blocks_total: int
    host_blocks_free: int
    host_blocks_idle: int
    host_blocks_in_use: int
    host_blocks_pending: int
    host_blocks_cached: int
    host_blocks_copies: int
    seqs_swapped: int
    demoted_blocks: int
    promoted_blocks: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    _fields_ = [
        ("size", c_size_t),
        ("blocks_total", c_uint64),
        ("blocks_base", c_uint64),
        ("blocks_free", c_uint64),
        ("blocks_idle", c_uint64),
        ("blocks_in_use", c_uint64),
        ("blocks_pending", c_uint64),
        ("blocks_lent", c_uint64),
        ("blocks_reserved", c_uint64),
        ("blocks_cached", c_uint64),
        ("seqs_live", c_uint64),
        ("tokens_live", c_uint64),
        ("waste_tokens", c_uint64),
        ("hit_tokens", c_uint64),
        ("partial_hit_tokens", c_uint64),
        ("prompt_tokens", c_uint64),
        ("evicted_blocks", c_uint64),
        ("copied_blocks", c_uint64),
        ("published_blocks", c_uint64),
        ("metadata_allocated_bytes", c_uint64),
        ("metadata_active_bytes", c_uint64),
        ("metadata_resident_bytes", c_uint64),
        ("longest_free_run", c_uint64),
        ("host_blocks_total", c_uint64),
        ("host_blocks_free", c_uint64),
        ("host_blocks_idle", c_uint64),
        ("host_blocks_in_use", c_uint64),
        ("host_blocks_pending", c_uint64),
        ("host_blocks_cached", c_uint64),
        ("host_blocks_copies", c_uint64),
        ("seqs_swapped", c_uint64),
        ("demoted_blocks", c_uint64),
        ("promoted_blocks", c_uint64),
        ("swapped_out_blocks", c_uint64),
        ("swapped_in_blocks", c_uint64),
    ]


class lkv_weights_desc(Struct):
    size: int
    kv_b_proj: Any
    scales: Any
    compute_dtype: int
    flags: int
    key_up: Any
    value_up: Any
    key_down: Any
    value_down: Any
    _fields_ = [
        ("size", c_size_t),
        ("kv_b_proj", POINTER(lkv_tensor)),
        ("scales", POINTER(lkv_tensor)),
        ("compute_dtype", c_uint32),
        ("flags", c_uint32),
        ("key_up", POINTER(lkv_tensor)),
        ("value_up", POINTER(lkv_tensor)),
        ("key_down", POINTER(lkv_tensor)),
        ("value_down", POINTER(lkv_tensor)),
    ]


class lkv_append_args(Struct):
    size: int
    latent: Any
    rope: Any
    slots: Any
    norm_weight: Any
    rope_table: Any
    positions: Any
    norm_eps: float
    layer: int
    flags: int
    reserved: int
    value: Any
    weights: Any
    _fields_ = [
        ("size", c_size_t),
        ("latent", POINTER(lkv_tensor)),
        ("rope", POINTER(lkv_tensor)),
        ("slots", c_void_p),
        ("norm_weight", c_void_p),
        ("rope_table", c_void_p),
        ("positions", c_void_p),
        ("norm_eps", c_float),
        ("layer", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("value", POINTER(lkv_tensor)),
        ("weights", c_void_p),
    ]


class lkv_plan_desc(Struct):
    size: int
    pool: Any
    num_heads: int
    max_seqs: int
    max_tokens: int
    max_q_len: int
    max_seq_len: int
    max_blocks_per_seq: int
    q_dtype: int
    out_dtype: int
    q_form: int
    out_form: int
    absorb_threshold: int
    flags: int
    nope_dim: int
    v_dim: int
    _fields_ = [
        ("size", c_size_t),
        ("pool", c_void_p),
        ("num_heads", c_uint32),
        ("max_seqs", c_uint32),
        ("max_tokens", c_uint32),
        ("max_q_len", c_uint32),
        ("max_seq_len", c_uint32),
        ("max_blocks_per_seq", c_uint32),
        ("q_dtype", c_uint32),
        ("out_dtype", c_uint32),
        ("q_form", c_uint32),
        ("out_form", c_uint32),
        ("absorb_threshold", c_uint32),
        ("flags", c_uint32),
        ("nope_dim", c_uint32),
        ("v_dim", c_uint32),
    ]


class lkv_batch(Struct):
    size: int
    num_seqs: int
    max_blocks_per_seq: int
    block_table: Any
    seq_lens: Any
    q_indptr: Any
    num_tokens: int
    block_table_stride: int
    _fields_ = [
        ("size", c_size_t),
        ("num_seqs", c_uint32),
        ("max_blocks_per_seq", c_uint32),
        ("block_table", c_void_p),
        ("seq_lens", c_void_p),
        ("q_indptr", c_void_p),
        ("num_tokens", c_uint64),
        ("block_table_stride", c_uint64),
    ]


class lkv_attend_args(Struct):
    size: int
    q: Any
    q_rope: Any
    out: Any
    lse: Any
    entropy: Any
    bias: Any
    weights: Any
    workspace: Any
    workspace_bytes: int
    scale: float
    layer: int
    flags: int
    _fields_ = [
        ("size", c_size_t),
        ("q", POINTER(lkv_tensor)),
        ("q_rope", POINTER(lkv_tensor)),
        ("out", POINTER(lkv_tensor)),
        ("lse", POINTER(lkv_tensor)),
        ("entropy", POINTER(lkv_tensor)),
        ("bias", POINTER(lkv_tensor)),
        ("weights", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("scale", c_double),
        ("layer", c_uint32),
        ("flags", c_uint32),
    ]


class lkv_gather_args(Struct):
    size: int
    slots: Any
    latent: Any
    rope: Any
    layer: int
    flags: int
    value: Any
    _fields_ = [
        ("size", c_size_t),
        ("slots", c_void_p),
        ("latent", POINTER(lkv_tensor)),
        ("rope", POINTER(lkv_tensor)),
        ("layer", c_uint32),
        ("flags", c_uint32),
        ("value", POINTER(lkv_tensor)),
    ]


class lkv_merge_args(Struct):
    size: int
    outs: Any
    lses: Any
    entropies: Any
    out: Any
    lse: Any
    entropy: Any
    _fields_ = [
        ("size", c_size_t),
        ("outs", POINTER(lkv_tensor)),
        ("lses", POINTER(lkv_tensor)),
        ("entropies", POINTER(lkv_tensor)),
        ("out", POINTER(lkv_tensor)),
        ("lse", POINTER(lkv_tensor)),
        ("entropy", POINTER(lkv_tensor)),
    ]


class lkv_router_desc(Struct):
    size: int
    kind: int
    flags: int
    hidden_dim: int
    num_experts: int
    top_k: int
    num_groups: int
    topk_groups: int
    trace_dim: int
    temperature: float
    routed_scale: float
    trace_weight: Any
    trace_bias: Any
    weight: Any
    bias: Any
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("hidden_dim", c_uint32),
        ("num_experts", c_uint32),
        ("top_k", c_uint32),
        ("num_groups", c_uint32),
        ("topk_groups", c_uint32),
        ("trace_dim", c_uint32),
        ("temperature", c_double),
        ("routed_scale", c_double),
        ("trace_weight", c_void_p),
        ("trace_bias", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
    ]


class lkv_route_args(Struct):
    size: int
    x: Any
    logits: Any
    experts: Any
    weights: Any
    entropy: Any
    load: Any
    num_tokens: int
    layer: int
    flags: int
    _fields_ = [
        ("size", c_size_t),
        ("x", POINTER(lkv_tensor)),
        ("logits", POINTER(lkv_tensor)),
        ("experts", c_void_p),
        ("weights", c_void_p),
        ("entropy", c_void_p),
        ("load", c_void_p),
        ("num_tokens", c_uint64),
        ("layer", c_uint32),
        ("flags", c_uint32),
    ]


class lkv_gate_desc(Struct):
    size: int
    reduce: int
    window_steps: int
    threshold: float
    stddevs: float
    hysteresis: float
    frozen: int
    flags: int
    _fields_ = [
        ("size", c_size_t),
        ("reduce", c_uint32),
        ("window_steps", c_uint32),
        ("threshold", c_double),
        ("stddevs", c_double),
        ("hysteresis", c_double),
        ("frozen", c_uint32),
        ("flags", c_uint32),
    ]


class lkv_gate_args(Struct):
    size: int
    entropy: Any
    active: Any
    triggered: Any
    reduced: Any
    num_triggered: int
    num_skipped: int
    _fields_ = [
        ("size", c_size_t),
        ("entropy", POINTER(lkv_tensor)),
        ("active", c_void_p),
        ("triggered", c_void_p),
        ("reduced", c_void_p),
        ("num_triggered", c_uint64),
        ("num_skipped", c_uint64),
    ]


class lkv_gate_state(Struct):
    size: int
    steps: int
    count: int
    total: int
    triggered: int
    skipped: int
    windows: int
    mean: float
    m2: float
    threshold: float
    frozen: int
    reserved: int
    _fields_ = [
        ("size", c_size_t),
        ("steps", c_uint64),
        ("count", c_uint64),
        ("total", c_uint64),
        ("triggered", c_uint64),
        ("skipped", c_uint64),
        ("windows", c_uint64),
        ("mean", c_double),
        ("m2", c_double),
        ("threshold", c_double),
        ("frozen", c_uint32),
        ("reserved", c_uint32),
    ]


class lkv_fallback_args(Struct):
    size: int
    policy: int
    num_experts: int
    primary: Any
    triggered: Any
    buddy: Any
    resident: Any
    fallback: Any
    num_tokens: int
    shared_expert: int
    flags: int
    num_chosen: int
    num_absent: int
    _fields_ = [
        ("size", c_size_t),
        ("policy", c_uint32),
        ("num_experts", c_uint32),
        ("primary", c_void_p),
        ("triggered", c_void_p),
        ("buddy", c_void_p),
        ("resident", c_void_p),
        ("fallback", c_void_p),
        ("num_tokens", c_uint64),
        ("shared_expert", c_int32),
        ("flags", c_uint32),
        ("num_chosen", c_uint64),
        ("num_absent", c_uint64),
    ]


class lkv_combine_args(Struct):
    size: int
    primary: Any
    fallback: Any
    out: Any
    chosen: Any
    weight: Any
    mode: int
    flags: int
    num_combined: int
    _fields_ = [
        ("size", c_size_t),
        ("primary", POINTER(lkv_tensor)),
        ("fallback", POINTER(lkv_tensor)),
        ("out", POINTER(lkv_tensor)),
        ("chosen", c_void_p),
        ("weight", c_void_p),
        ("mode", c_uint32),
        ("flags", c_uint32),
        ("num_combined", c_uint64),
    ]


class lkv_token_scale_args(Struct):
    size: int
    x: Any
    scale: Any
    low: float
    high: float
    decay: float
    mean: float
    count: int
    _fields_ = [
        ("size", c_size_t),
        ("x", POINTER(lkv_tensor)),
        ("scale", c_void_p),
        ("low", c_double),
        ("high", c_double),
        ("decay", c_double),
        ("mean", c_double),
        ("count", c_uint64),
    ]


class lkv_slot_key(Struct):
    kind: int
    layer: int
    block: int
    index: int
    _fields_ = [
        ("kind", c_uint32),
        ("layer", c_uint32),
        ("block", c_uint32),
        ("index", c_uint32),
    ]


class lkv_slot(Struct):
    handle: int
    address: Any
    state: int
    block: int
    layer: int
    offset_bytes: int
    _fields_ = [
        ("handle", c_uint64),
        ("address", c_void_p),
        ("state", c_uint32),
        ("block", c_int32),
        ("layer", c_uint32),
        ("offset_bytes", c_uint32),
    ]


class lkv_slots_desc(Struct):
    size: int
    payload_bytes: int
    max_blocks: int
    policy: int
    num_layers: int
    fill: Any
    fill_user: Any
    _fields_ = [
        ("size", c_size_t),
        ("payload_bytes", c_uint64),
        ("max_blocks", c_uint64),
        ("policy", c_uint32),
        ("num_layers", c_uint32),
        ("fill", c_void_p),
        ("fill_user", c_void_p),
    ]


class lkv_slots_args(Struct):
    size: int
    keys: Any
    slots: Any
    num_keys: int
    step: int
    flags: int
    reserved: int
    num_ready: int
    num_filling: int
    num_new: int
    num_refused: int
    num_missed: int
    _fields_ = [
        ("size", c_size_t),
        ("keys", POINTER(lkv_slot_key)),
        ("slots", POINTER(lkv_slot)),
        ("num_keys", c_uint64),
        ("step", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("num_ready", c_uint64),
        ("num_filling", c_uint64),
        ("num_new", c_uint64),
        ("num_refused", c_uint64),
        ("num_missed", c_uint64),
    ]


class lkv_slots_stats(Struct):
    size: int
    payload_bytes: int
    budget_bytes: int
    held_bytes: int
    used_bytes: int
    blocks_max: int
    blocks_held: int
    slots_total: int
    slots_ready: int
    slots_filling: int
    slots_pinned: int
    entries: int
    token_entries: int
    token_users: int
    hits: int
    misses: int
    created: int
    refused: int
    evicted: int
    dropped: int
    copied: int
    copies_lost: int
    token_idle: int
    _fields_ = [
        ("size", c_size_t),
        ("payload_bytes", c_uint64),
        ("budget_bytes", c_uint64),
        ("held_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("blocks_max", c_uint64),
        ("blocks_held", c_uint64),
        ("slots_total", c_uint64),
        ("slots_ready", c_uint64),
        ("slots_filling", c_uint64),
        ("slots_pinned", c_uint64),
        ("entries", c_uint64),
        ("token_entries", c_uint64),
        ("token_users", c_uint64),
        ("hits", c_uint64),
        ("misses", c_uint64),
        ("created", c_uint64),
        ("refused", c_uint64),
        ("evicted", c_uint64),
        ("dropped", c_uint64),
        ("copied", c_uint64),
        ("copies_lost", c_uint64),
        ("token_idle", c_uint64),
    ]


class lkv_trace_args(Struct):
    size: int
    slots: Any
    experts: Any
    num_tokens: int
    plane: int
    layer: int
    num_layers: int
    top_k: int
    _fields_ = [
        ("size", c_size_t),
        ("slots", c_void_p),
        ("experts", c_void_p),
        ("num_tokens", c_uint64),
        ("plane", c_uint32),
        ("layer", c_uint32),
        ("num_layers", c_uint32),
        ("top_k", c_uint32),
    ]


class lkv_moe_args(Struct):
    size: int
    load: Any
    gate: Any
    slots: Any
    pool: Any
    num_experts: int
    flags: int
    overload_factor: float
    utilisation_low: float
    utilisation_high: float
    trigger_low: float
    trigger_high: float
    _fields_ = [
        ("size", c_size_t),
        ("load", c_void_p),
        ("gate", c_void_p),
        ("slots", c_void_p),
        ("pool", c_void_p),
        ("num_experts", c_uint32),
        ("flags", c_uint32),
        ("overload_factor", c_double),
        ("utilisation_low", c_double),
        ("utilisation_high", c_double),
        ("trigger_low", c_double),
        ("trigger_high", c_double),
    ]


class lkv_moe_stats(Struct):
    size: int
    experts: int
    experts_used: int
    experts_overloaded: int
    routed: int
    utilisation_nats: float
    utilisation_bits: float
    utilisation_share: float
    load_cv: float
    load_peak: float
    threshold: float
    trigger_rate: float
    gate_tokens: int
    gate_triggered: int
    gate_skipped: int
    gate_windows: int
    slots_total: int
    slots_ready: int
    slot_hits: int
    slot_misses: int
    slot_refused: int
    slot_evicted: int
    slot_dropped: int
    headroom_blocks: int
    lent_blocks: int
    slot_blocks: int
    dedup_ratio: float
    outside: int
    _fields_ = [
        ("size", c_size_t),
        ("experts", c_uint64),
        ("experts_used", c_uint64),
        ("experts_overloaded", c_uint64),
        ("routed", c_uint64),
        ("utilisation_nats", c_double),
        ("utilisation_bits", c_double),
        ("utilisation_share", c_double),
        ("load_cv", c_double),
        ("load_peak", c_double),
        ("threshold", c_double),
        ("trigger_rate", c_double),
        ("gate_tokens", c_uint64),
        ("gate_triggered", c_uint64),
        ("gate_skipped", c_uint64),
        ("gate_windows", c_uint64),
        ("slots_total", c_uint64),
        ("slots_ready", c_uint64),
        ("slot_hits", c_uint64),
        ("slot_misses", c_uint64),
        ("slot_refused", c_uint64),
        ("slot_evicted", c_uint64),
        ("slot_dropped", c_uint64),
        ("headroom_blocks", c_uint64),
        ("lent_blocks", c_uint64),
        ("slot_blocks", c_uint64),
        ("dedup_ratio", c_double),
        ("outside", c_uint64),
    ]


# name: (result, arguments)
FUNCTIONS = {
    "lkv_version": (c_uint32, ()),
    "lkv_status_name": (c_char_p, (c_int32,)),
    "lkv_last_error": (c_char_p, ()),
    "lkv_context_create": (c_int32, (POINTER(lkv_context_desc), c_void_p)),
    "lkv_context_release": (None, (c_void_p,)),
    "lkv_context_query": (c_int32, (c_void_p, POINTER(lkv_context_info))),
    "lkv_model_preset": (c_int32, (c_char_p, POINTER(lkv_model_desc))),
    "lkv_model_preset_name": (c_char_p, (c_uint32,)),
    "lkv_block_query": (c_int32, (POINTER(lkv_pool_desc), POINTER(lkv_block_info))),
    "lkv_pool_create": (c_int32, (c_void_p, POINTER(lkv_pool_desc), c_void_p)),
    "lkv_pool_release": (None, (c_void_p,)),
    "lkv_pool_describe": (c_int32, (c_void_p, POINTER(lkv_pool_desc))),
    "lkv_pool_layer": (c_int32, (c_void_p, c_uint32, POINTER(lkv_pool_layout))),
    "lkv_pool_plane": (c_int32, (c_void_p, c_uint32, c_void_p, c_void_p)),
    "lkv_pool_faults": (c_int32, (c_void_p, c_uint32, POINTER(lkv_faults))),
    "lkv_seq_match": (c_int32, (c_void_p, POINTER(lkv_prompt), POINTER(lkv_match))),
    "lkv_seq_admit": (c_int32, (c_void_p, POINTER(lkv_prompt), POINTER(lkv_admit_args),
        POINTER(lkv_admission), c_void_p)),
    "lkv_seq_append": (c_int32, (c_void_p, c_uint64, c_void_p, c_uint64, POINTER(lkv_admission))),
    "lkv_seq_reserve": (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(lkv_admission))),
    "lkv_seq_commit": (c_int32, (c_void_p, c_uint64, c_uint64)),
    "lkv_seq_truncate": (c_int32, (c_void_p, c_uint64, c_uint64, c_uint64)),
    "lkv_seq_fork": (c_int32, (c_void_p, c_uint64, c_void_p)),
    "lkv_seq_free": (c_int32, (c_void_p, c_uint64, c_uint64)),
    "lkv_seq_query": (c_int32, (c_void_p, c_uint64, POINTER(lkv_seq_info))),
    "lkv_seq_table": (c_int32, (c_void_p, c_uint64, c_void_p, c_uint64, c_void_p)),
    "lkv_seq_common": (c_int32, (c_void_p, c_void_p, c_uint64, c_void_p)),
    "lkv_pool_step": (c_int32, (c_void_p, POINTER(lkv_step), POINTER(lkv_admission))),
    "lkv_seq_swap_out": (c_int32, (c_void_p, c_uint64, c_uint64, POINTER(lkv_admission))),
    "lkv_seq_swap_in": (c_int32, (c_void_p, c_uint64, POINTER(lkv_admission))),
    "lkv_pool_apply_copies": (c_int32, (c_void_p, c_uint64, c_void_p)),
    "lkv_pool_take_copies": (c_int32, (c_void_p, c_void_p, c_uint64, c_uint64, c_void_p)),
    "lkv_pool_pass_fence": (c_int32, (c_void_p, c_uint64)),
    "lkv_lease_pin": (c_int32, (c_void_p, c_void_p, c_uint64, c_void_p)),
    "lkv_lease_lend": (c_int32, (c_void_p, c_uint64, c_void_p, c_void_p)),
    "lkv_lease_release": (c_int32, (c_void_p, c_uint64, c_uint64)),
    "lkv_pool_tick": (c_int32, (c_void_p, c_uint64)),
    "lkv_pool_demote": (c_int32, (c_void_p, c_uint64, c_void_p)),
    "lkv_pool_evict": (c_int32, (c_void_p, c_uint64, c_void_p)),
    "lkv_pool_drop": (c_int32, (c_void_p, POINTER(lkv_key), c_void_p)),
    "lkv_pool_reset": (c_int32, (c_void_p, c_uint32)),
    "lkv_pool_events": (c_int32, (c_void_p, POINTER(lkv_event_batch))),
    "lkv_pool_snapshot_save": (c_int32, (c_void_p, POINTER(lkv_snapshot_args),
        POINTER(lkv_snapshot_info), c_void_p)),
    "lkv_pool_snapshot_load": (c_int32, (c_void_p, POINTER(lkv_snapshot_args),
        POINTER(lkv_snapshot_info), c_void_p)),
    "lkv_pool_query": (c_int32, (c_void_p, POINTER(lkv_pool_stats))),
    "lkv_pool_check": (c_int32, (c_void_p,)),
    "lkv_pool_metrics_text": (c_int32, (c_void_p, c_char_p, c_void_p, c_size_t, c_void_p)),
    "lkv_weights_create": (c_int32, (c_void_p, POINTER(lkv_model_desc), POINTER(lkv_weights_desc),
        c_void_p)),
    "lkv_weights_release": (None, (c_void_p,)),
    "lkv_project_q": (c_int32, (c_void_p, POINTER(lkv_tensor), POINTER(lkv_tensor), c_void_p,
        c_size_t, c_void_p)),
    "lkv_project_out": (c_int32, (c_void_p, POINTER(lkv_tensor), POINTER(lkv_tensor), c_void_p,
        c_size_t, c_void_p)),
    "lkv_project_workspace": (c_int32, (c_void_p, c_uint64, c_void_p)),
    "lkv_rope_create": (c_int32, (c_void_p, POINTER(lkv_model_desc), c_uint64, c_void_p)),
    "lkv_rope_release": (None, (c_void_p,)),
    "lkv_rope_apply": (c_int32, (c_void_p, POINTER(lkv_tensor), POINTER(lkv_tensor), c_void_p,
        c_void_p)),
    "lkv_rotate": (c_int32, (c_void_p, POINTER(lkv_tensor), POINTER(lkv_tensor), c_void_p)),
    "lkv_append": (c_int32, (c_void_p, POINTER(lkv_append_args), c_void_p)),
    "lkv_plan_create": (c_int32, (c_void_p, POINTER(lkv_plan_desc), c_void_p)),
    "lkv_plan_release": (None, (c_void_p,)),
    "lkv_plan_describe": (c_int32, (c_void_p, POINTER(lkv_plan_desc))),
    "lkv_plan_workspace": (c_int32, (c_void_p, c_void_p)),
    "lkv_plan_update": (c_int32, (c_void_p, POINTER(lkv_batch), c_void_p, c_size_t, c_void_p)),
    "lkv_attend": (c_int32, (c_void_p, c_void_p, POINTER(lkv_batch), POINTER(lkv_attend_args),
        c_void_p)),
    "lkv_gather": (c_int32, (c_void_p, POINTER(lkv_gather_args), c_void_p)),
    "lkv_merge": (c_int32, (c_void_p, POINTER(lkv_merge_args), c_void_p)),
    "lkv_router_create": (c_int32, (c_void_p, POINTER(lkv_router_desc), c_void_p)),
    "lkv_router_release": (None, (c_void_p,)),
    "lkv_route": (c_int32, (c_void_p, POINTER(lkv_route_args), c_void_p)),
    "lkv_gate_create": (c_int32, (POINTER(lkv_gate_desc), c_void_p)),
    "lkv_gate_release": (None, (c_void_p,)),
    "lkv_gate_step": (c_int32, (c_void_p, POINTER(lkv_gate_args))),
    "lkv_gate_freeze": (c_int32, (c_void_p, c_uint32)),
    "lkv_gate_save": (c_int32, (c_void_p, POINTER(lkv_gate_state))),
    "lkv_gate_load": (c_int32, (c_void_p, POINTER(lkv_gate_state))),
    "lkv_fallback_choose": (c_int32, (POINTER(lkv_fallback_args),)),
    "lkv_combine": (c_int32, (c_void_p, POINTER(lkv_combine_args), c_void_p)),
    "lkv_token_scale": (c_int32, (c_void_p, POINTER(lkv_token_scale_args), c_void_p)),
    "lkv_slots_create": (c_int32, (c_void_p, POINTER(lkv_slots_desc), c_void_p)),
    "lkv_slots_release": (None, (c_void_p,)),
    "lkv_slots_get": (c_int32, (c_void_p, POINTER(lkv_slots_args))),
    "lkv_slots_commit": (c_int32, (c_void_p, c_void_p, c_uint64, c_uint32)),
    "lkv_slots_unpin": (c_int32, (c_void_p, c_void_p, c_uint64)),
    "lkv_slots_erase": (c_int32, (c_void_p, POINTER(lkv_slot_key), c_uint64, c_void_p)),
    "lkv_slots_query": (c_int32, (c_void_p, POINTER(lkv_slots_stats))),
    "lkv_trace_write": (c_int32, (c_void_p, POINTER(lkv_trace_args))),
    "lkv_trace_read": (c_int32, (c_void_p, POINTER(lkv_trace_args))),
    "lkv_moe_measure": (c_int32, (POINTER(lkv_moe_args), POINTER(lkv_moe_stats))),
    "lkv_moe_metrics_text": (c_int32, (POINTER(lkv_moe_args), c_char_p, c_void_p, c_size_t,
        c_void_p)),
}
