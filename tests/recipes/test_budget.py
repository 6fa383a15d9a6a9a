"""How much data a recorded training has read."""

import budget
import pytest


@pytest.mark.parametrize(
    ("cmd", "updates", "told"),
    [
        # 16 texts of 256 tokens
        ("SCALE=long SEED=1 recipes/ilr/table1.sh 2,2,2,2-rope", "1200", "4.92M tokens"),
        # 32 texts of 128
        ("SCALE=small SEED=2 recipes/kausik/table2.sh recurrent", "400", "1.64M tokens"),
        ("SCALE=small SEED=1 recipes/multi30k/train.sh ringformer --max-tokens 2000", "100", "200K tokens at most"),
        ("SCALE=small SEED=1 recipes/cifar10/train.sh sret", "2000", "100K images"),
        ("SCALE=long SEED=1 recipes/takase/digits.sh cycle", "2000", "12M frames at most"),
        ("SCALE=paper SEED=1 recipes/kausik/table6.sh copying", "900", "57.6K texts"),
        ("SCALE=paper SEED=1 recipes/takase/table1.sh vanilla", "50000", "22.9B tokens at most"),  # 3,584 x 128
        ("SCALE=paper SEED=1 recipes/ringformer/flops.sh vit", "", ""),
        ("SCALE=small SEED=1 recipes/multi30k/train.sh a_row_of_old", "100", ""),
    ],
)
def test_the_data_of_a_training_are_those_of_its_command(cmd, updates, told):
    assert budget.data(cmd, updates) == told
