"""A STUB that stands in for SGLang's kernel package on a CPU. For tests only.

No CPU build of that package is published. SGLang 0.5.23 imports these names on a CPU whether it needs them or
not (found by reading its `if _is_cpu:` imports). All of them belong to speculative decoding, which therefore
does not work here; serving without it runs SGLang's own PyTorch code and calls none of them.
"""

from typing import Any, NoReturn

__version__ = "0+stub"


class _Missing:
    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_args: Any, **_named: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel is a stub for tests: it has no {self.__name__}")


assign_draft_cache_locs_contiguous_cpu = _Missing("assign_draft_cache_locs_contiguous_cpu")
assign_extend_cache_locs_cpu = _Missing("assign_extend_cache_locs_cpu")
assign_req_to_token_pool_cpu = _Missing("assign_req_to_token_pool_cpu")
build_tree_kernel_efficient_cpu = _Missing("build_tree_kernel_efficient_cpu")
copy_all_layer_kv_cache_cpu = _Missing("copy_all_layer_kv_cache_cpu")
fill_accept_out_cache_loc_cpu = _Missing("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _Missing("fill_bonus_tokens_cpu")
rotate_input_ids_cpu = _Missing("rotate_input_ids_cpu")
verify_tree_greedy_cpu = _Missing("verify_tree_greedy_cpu")
