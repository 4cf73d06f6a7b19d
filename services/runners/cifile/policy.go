package cifile

import (
	"errors"
	"slices"
	"strings"

	"lockstep.internal/libs/yamlfile"

	"lockstep.internal/services/runners/cifile/condition"
)

func (d *decoder) artifacts(v *yamlfile.Value) *Artifacts {
	if !d.Mapping(v, "artifacts") {
		return nil
	}
	out := &Artifacts{When: OnSuccess}
	for _, e := range v.Entries {
		switch {
		case !artifactsKeywords[e.Key]:
			d.refuse(e, "artifacts", refusedArtifactsKeywords, artifactsKeywords)
		case e.Value.Null():
		case e.Key == "name":
			out.Name = d.Text(e.Value, "name")
		case e.Key == "paths":
			out.Paths = d.paths(e.Value, "paths")
		case e.Key == "exclude":
			out.Exclude = d.paths(e.Value, "exclude")
		case e.Key == "untracked":
			out.Untracked = d.Boolean(e.Value, "untracked")
		case e.Key == "when":
			out.When = d.when(e.Value, OnSuccess, OnFailure, Always)
		case e.Key == "expire_in":
			out.ExpireIn = d.expireIn(e.Value)
		}
	}
	if len(out.Paths) == 0 && !out.Untracked {
		d.Addf(v.Position, "artifacts needs paths or untracked: true")
	}
	return out
}

func (d *decoder) paths(v *yamlfile.Value, what string) []string {
	if v.Kind == yamlfile.List && len(v.Items) > yamlfile.MaxListed {
		d.Addf(v.Position, "%s has at most %d items", what, yamlfile.MaxListed)
		return nil
	}
	return d.TextOrList(v, what)
}

// ExpireNever is the value of expire_in for artifacts that stay until they are deleted.
const ExpireNever = "never"

func (d *decoder) expireIn(v *yamlfile.Value) string {
	if v.Kind == yamlfile.Scalar && v.Text == ExpireNever {
		return ExpireNever
	}
	d.duration(v, "expire_in")
	return v.Text
}

const maxRules = 50

// rules decodes rules. The when of a rule without one is that of the job.
func (d *decoder) rules(v *yamlfile.Value, when When) []Rule {
	if v.Kind != yamlfile.List {
		d.Addf(v.Position, "rules must be a list, not %s", v)
		return nil
	}
	if len(v.Items) > maxRules {
		d.Addf(v.Position, "a job has at most %d rules", maxRules)
		return nil
	}
	out := make([]Rule, 0, len(v.Items))
	for _, item := range v.Items {
		if item.Kind == yamlfile.List { // an anchor of a list of rules
			out = append(out, d.rules(item, when)...)
			continue
		}
		if d.Mapping(item, "an item of rules") {
			out = append(out, d.rule(item, when))
		}
	}
	if len(out) > maxRules {
		d.Addf(v.Position, "a job has at most %d rules", maxRules)
		return nil
	}
	return out
}

func (d *decoder) rule(v *yamlfile.Value, when When) Rule {
	out := Rule{When: when}
	if len(v.Entries) == 0 {
		d.Addf(v.Position, "a rule needs if or when")
	}
	for _, e := range v.Entries {
		switch {
		case !ruleKeywords[e.Key]:
			d.refuse(e, "a rule", refusedRuleKeywords, ruleKeywords)
		case e.Value.Null():
		case e.Key == "if":
			out.If = d.condition(e.Value)
		case e.Key == "when":
			out.When = d.when(e.Value, OnSuccess, OnFailure, Always, Never)
		case e.Key == "allow_failure":
			out.AllowFailure = new(d.Boolean(e.Value, "allow_failure"))
		case e.Key == "variables":
			out.Variables = d.variables(e.Value, jobVariable)
		}
	}
	return out
}

func (d *decoder) condition(v *yamlfile.Value) *condition.Condition {
	if v.Kind != yamlfile.Scalar {
		d.Addf(v.Position, "if must be a text, not %s", v)
		return nil
	}
	out, err := condition.Parse(v.Text)
	if syntax, ok := errors.AsType[*condition.SyntaxError](err); ok {
		d.Addf(v.Position, "if: %s at character %d of %s", syntax.Message, syntax.Offset+1, yamlfile.Quote(v.Text))
	}
	return out
}

// RetryReasons returns the reasons for failure that retry:when may name. A job that admission denied is never retried.
func RetryReasons() []string {
	return []string{
		RetryAlways, "script_failure", "runner_system_failure", "job_execution_timeout", "image_pull_failure",
		"configuration_error", "runner_unsupported", "unknown_failure", "missing_dependency_failure",
		"stuck_or_timeout_failure", "no_matching_runner", "data_integrity_failure",
	}
}

// RetryAlways is the reason that stands for all.
const RetryAlways = "always"

const maxRetries = 2 // as in GitLab

func (d *decoder) retry(v *yamlfile.Value) Retry {
	if v.Kind != yamlfile.Map {
		return Retry{Max: d.Integer(v, "retry", 0, maxRetries)}
	}
	out := Retry{Max: maxRetries}
	for _, e := range v.Entries {
		switch {
		case !retryKeywords[e.Key]:
			d.refuse(e, "retry", refusedRetryKeywords, retryKeywords)
		case e.Value.Null():
		case e.Key == "max":
			out.Max = d.Integer(e.Value, "max", 0, maxRetries)
		case e.Key == "when":
			out.When = d.retryWhen(e.Value)
		}
	}
	return out
}

// maxExitCode is the largest exit status of Windows.
const maxExitCode = 1<<32 - 1

func (d *decoder) retryWhen(v *yamlfile.Value) []string {
	reasons, known := d.TextOrList(v, "when"), RetryReasons()
	for i, reason := range reasons {
		if reason == "" || slices.Contains(known, reason) {
			continue
		}
		at := v.Position
		if v.Kind == yamlfile.List {
			at = v.Items[i].Position
		}
		d.Addf(at, "the reason for failure %s is not one of %s", yamlfile.Quote(reason), strings.Join(known, ", "))
	}
	if slices.Contains(reasons, RetryAlways) {
		return nil
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}

func (d *decoder) allowFailure(v *yamlfile.Value) AllowFailure {
	var out AllowFailure
	if v == nil {
		return out
	}
	if v.Kind != yamlfile.Map {
		out.Always = d.Boolean(v, "allow_failure")
		return out
	}
	for _, e := range v.Entries {
		switch {
		case !allowFailureKeywords[e.Key]:
			d.refuse(e, "allow_failure", nil, allowFailureKeywords)
		case e.Value.Null():
		case e.Key == "exit_codes":
			out.ExitCodes = d.Integers(e.Value, "exit_codes", 0, maxExitCode)
		case e.Key == "on_denied_admission":
			out.OnDeniedAdmission = d.Boolean(e.Value, "on_denied_admission")
		}
	}
	return out
}

func (d *decoder) parallel(v *yamlfile.Value) Parallel {
	if v == nil {
		return Parallel{}
	}
	if v.Kind != yamlfile.Map {
		return Parallel{Total: d.Integer(v, "parallel", 1, d.limits.Parallel)}
	}
	for _, e := range v.Entries {
		if !parallelKeywords[e.Key] {
			d.refuse(e, "parallel", nil, parallelKeywords)
		}
	}
	matrix := v.Get("matrix")
	if matrix == nil || matrix.Kind != yamlfile.List || len(matrix.Items) == 0 {
		d.Addf(v.Position, "parallel must be a number or have a matrix, which is a list of variables with their values")
		return Parallel{}
	}
	var out Parallel
	for _, item := range matrix.Items {
		if d.Mapping(item, "an item of matrix") {
			out.Matrix = append(out.Matrix, d.axes(item))
		}
	}
	if copies := out.Copies(); copies > d.limits.Parallel {
		d.Addf(matrix.Position, "the matrix makes %d jobs: at most %d are allowed", copies, d.limits.Parallel)
		return Parallel{}
	}
	return out
}

const maxAxes = 20

func (d *decoder) axes(v *yamlfile.Value) []Axis {
	if len(v.Entries) == 0 {
		d.Addf(v.Position, "an item of matrix needs a variable")
	}
	if len(v.Entries) > maxAxes {
		d.Addf(v.Position, "an item of matrix has at most %d variables", maxAxes)
		return nil
	}
	out := make([]Axis, 0, len(v.Entries))
	for _, e := range v.Entries {
		if !variableName.MatchString(e.Key) {
			d.Addf(e.Position, "the name of a variable has letters, digits and _ and starts with no digit, not %s",
				yamlfile.Quote(e.Key))
		}
		values := d.TextOrList(e.Value, e.Key)
		if len(values) == 0 {
			d.Addf(e.Value.Position, "the variable %s needs a value", e.Key)
		}
		out = append(out, Axis{Name: e.Key, Values: values})
	}
	return out
}
