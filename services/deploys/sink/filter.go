package sink

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"

	"lockstep.internal/libs/config"
	"lockstep.internal/schemas/gen/events"
)

// FilterConfig selects the facts that a sink delivers. A fact must meet every condition. An empty field is not a
// condition.
type FilterConfig struct {
	Facts      []string          `yaml:"facts" help:"facts to deliver, such as completed; default: those that the type of sink supports"`
	Kinds      []string          `yaml:"kinds" help:"kinds of workloads: deployment, statefulset, daemonset, group; default: all"`
	Clusters   []string          `yaml:"clusters" help:"UIDs of clusters; default: all"`
	Namespaces []string          `yaml:"namespaces" help:"namespaces, * for any characters; default: all"`
	Names      []string          `yaml:"names" help:"names of workloads, * for any characters; default: all"`
	Labels     map[string]string `yaml:"labels" help:"labels that the workload has; * for any value; default: none"`
	Expression string            `yaml:"expression" help:"condition in CEL with the variables name, namespace, kind, cluster, agent, labels, annotations, change, revision, images, reason, message, provenance, group, run and fact, the complete fact as in its schema; a fact is not delivered if the evaluation fails; default: none"`
}

// Validate returns the errors of the patterns and of the expression.
func (c FilterConfig) Validate() []error {
	var faults []error
	for key, patterns := range map[string][]string{"namespaces": c.Namespaces, "names": c.Names} {
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil {
				faults = append(faults, config.Invalid(key, "%q is not a pattern such as team-*", p))
			}
		}
	}
	for _, f := range c.Facts {
		if !slices.Contains(facts(), events.Fact(f)) {
			faults = append(faults, config.Invalid("facts", "%q is not a fact: use %s", f, join(facts())))
		}
	}
	for _, k := range c.Kinds {
		if !slices.Contains(kinds(), k) {
			faults = append(faults, config.Invalid("kinds", "%q is not a kind: use %s", k, join(kinds())))
		}
	}
	if _, err := compile(c.Expression); err != nil {
		faults = append(faults, config.Invalid("expression", "%v", err))
	}
	return faults
}

// facts returns the names of all facts.
func facts() []events.Fact {
	return []events.Fact{
		events.FactStarted, events.FactProgressed, events.FactCompleted, events.FactDrained,
		events.FactStalled, events.FactRecovered, events.FactBlocked, events.FactUnblocked,
		events.FactPaused, events.FactResumed, events.FactSuperseded, events.FactCancelled,
		events.FactRolledBack, events.FactRestarted, events.FactRemoved, events.FactUnknown, events.FactGap,
		events.FactScaleStarted, events.FactScaleCompleted, events.FactPartitionReached,
		events.FactEnvironmentStarted, events.FactEnvironmentReady, events.FactEnvironmentFailed,
		events.FactEnvironmentRemoved,
	}
}

// kinds returns the kinds of workloads, including group.
func kinds() []string {
	return []string{
		string(events.WorkloadKindDeployment), string(events.WorkloadKindStatefulset),
		string(events.WorkloadKindDaemonset), "group",
	}
}

func join[T ~string](names []T) string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = string(n)
	}
	return strings.Join(texts, ", ")
}

// Filter selects facts. The zero Filter selects all.
type Filter struct {
	cfg     FilterConfig
	program cel.Program
}

// costLimit is the maximum cost of an expression for one fact. Comparing a string costs about 1.
const costLimit = 100_000

// NewFilter compiles the filter.
func NewFilter(cfg FilterConfig) (*Filter, error) {
	if faults := cfg.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("filter: %w", errors.Join(faults...))
	}
	program, err := compile(cfg.Expression)
	if err != nil {
		return nil, err
	}
	return &Filter{cfg: cfg, program: program}, nil
}

// compile compiles an expression. It returns nil for an empty one.
func compile(expression string) (cel.Program, error) {
	if expression == "" {
		return nil, nil //nolint:nilnil // No condition.
	}
	texts := cel.MapType(cel.StringType, cel.StringType)
	env, err := cel.NewEnv(
		cel.CrossTypeNumericComparisons(true),
		cel.Variable("fact", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("name", cel.StringType),
		cel.Variable("namespace", cel.StringType),
		cel.Variable("kind", cel.StringType),
		cel.Variable("cluster", cel.StringType),
		cel.Variable("agent", cel.IntType),
		cel.Variable("labels", texts),
		cel.Variable("annotations", texts),
		cel.Variable("change", cel.StringType),
		cel.Variable("revision", cel.IntType),
		cel.Variable("images", cel.ListType(cel.StringType)),
		cel.Variable("reason", cel.StringType),
		cel.Variable("message", cel.StringType),
		cel.Variable("provenance", cel.StringType),
		cel.Variable("group", cel.StringType),
		cel.Variable("run", cel.StringType),
	)
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("parse the expression: %w", issues.Err())
	}
	if out := ast.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("the expression is of type %s, must be bool", out)
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit))
	if err != nil {
		return nil, fmt.Errorf("compile the expression: %w", err)
	}
	return program, nil
}

// Selects reports whether the filter selects a fact.
func (f *Filter) Selects(fact events.DeployFact) bool {
	w := fact.Workload
	listed := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	if !listed(f.cfg.Facts, string(fact.Fact)) || !listed(f.cfg.Kinds, w.Kind) || !listed(f.cfg.Clusters, w.ClusterUID) ||
		!matches(f.cfg.Namespaces, w.Namespace) || !matches(f.cfg.Names, w.Name) {
		return false
	}
	for key, want := range f.cfg.Labels {
		if have, ok := w.Labels[key]; !ok || want != "*" && want != have {
			return false
		}
	}
	return f.program == nil || f.isTrue(fact)
}

func matches(patterns []string, value string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, value)
		return ok && err == nil
	})
}

// isTrue reports whether the expression is true for a fact.
func (f *Filter) isTrue(fact events.DeployFact) bool {
	raw, err := json.Marshal(fact)
	if err != nil {
		return false
	}
	complete := map[string]any{}
	if err := json.Unmarshal(raw, &complete); err != nil {
		return false
	}
	w, v := fact.Workload, NewView(fact, Source{})
	out, _, err := f.program.Eval(map[string]any{
		"fact": complete, "name": w.Name, "namespace": w.Namespace, "kind": w.Kind, "cluster": w.ClusterUID,
		"agent": w.AgentID, "labels": v.Labels, "annotations": v.Annotation, "change": v.Change, "revision": v.Revision,
		"images": v.Images, "reason": fact.Reason, "message": fact.Message, "provenance": string(fact.Provenance),
		"group": v.Group, "run": v.Run,
	})
	if err != nil {
		return false
	}
	result, ok := out.Value().(bool)
	return ok && result
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
