#pragma once
// Paper 3's claim that needs training: how much of a transformer a classifier of images can do without.
// Beyond smoke scale the folder of corpora holds MNIST's four files in mnist/, and CIFAR-10's pictures in
// cifar10/train and cifar10/test, a folder for each class.

#include <vector>

#include "pare/claims/trained.h"

namespace pare {

std::vector<PlannedRun> plan_minimum_transformer(const Trial& trial);
Outcome judge_minimum_transformer(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
