"""When a graph is made; what it computes is tested on a GPU, in test_gpu.py."""

import torch

from recurrence.papers import cuda_graph


def test_shapes_that_keep_coming_get_a_graph_and_rare_ones_do_not(monkeypatch):
    called, captured = [], []

    class Graph:
        def __init__(self, function, settings, tensors):
            captured.append(tensors[0].shape)

        def __call__(self, tensors):
            return (2 * tensors[0],)

    def double(settings, x, nothing):
        called.append(x.shape)
        return (2 * x,)

    monkeypatch.setattr(cuda_graph, "_suits", lambda tensors: True)
    monkeypatch.setattr(cuda_graph, "_Graph", Graph)
    monkeypatch.setattr(cuda_graph, "_graphs", type(cuda_graph._graphs)())
    often, sizes = torch.ones(3), iter(range(4, 100))
    for _ in range(5):
        for x in (often, torch.ones(next(sizes))):
            assert torch.equal(cuda_graph.replayed(double, None, x, None)[0], 2 * x)
    assert captured == [often.shape]
    assert called.count(often.shape) == cuda_graph.CAPTURED_AT - 1
    assert len(called) == 5 + cuda_graph.CAPTURED_AT - 1
    for _ in range(cuda_graph.KEPT):  # other shapes push it out, and it is captured again
        cuda_graph.replayed(double, None, torch.ones(next(sizes)), None)
    for _ in range(cuda_graph.CAPTURED_AT):
        cuda_graph.replayed(double, None, often, None)
    assert captured == [often.shape] * 2
