from .features import pair_features as pair_features, text_features as text_features
from .networks import (
    Encoded as Encoded,
    Network as Network,
    encode_images as encode_images,
    encode_texts as encode_texts,
    initial_weights as initial_weights,
)
from .sampling import Member as Member, draw_members as draw_members
from .store import Crowd as Crowd, train_crowd as train_crowd
from .training import (
    CrowdState as CrowdState,
    EpochPlan as EpochPlan,
    TrainedCrowd as TrainedCrowd,
    predict_logits as predict_logits,
    train as train,
)
