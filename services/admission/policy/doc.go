// Package policy decides about jobs without a web server: by lists and by rules in CEL.
//
// [Parse] reads a policy, a YAML file. Its error has every problem of the file with line and column; CEL is compiled
// and type-checked here. [Policy.Evaluate] is pure apart from the clock of its time-out. It returns an answer as a
// controller would give it.
//
//   - match: jobs for which it is false are accepted unchanged
//   - deny, allow, redirect: lists by user, group, project and runner, in this order
//   - rules: in the order of the file; a rule with allow or deny ends the evaluation
//
// If the policy excludes every runner that it was given, the job is rejected: an answer without accepted runners would
// mean all. An expression that fails, costs more than [CostLimit] or takes too long is an [*EvaluationError] and no
// answer.
package policy
