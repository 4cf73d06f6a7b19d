package cifile

import (
	"errors"
	"slices"
	"strings"

	"lockstep.internal/services/runners/cifile/condition"
)

func (d *decoder) artifacts(v *value) *Artifacts {
	if !d.mapping(v, "artifacts") {
		return nil
	}
	out := &Artifacts{When: OnSuccess}
	for _, e := range v.entries {
		switch {
		case !artifactsKeywords[e.key]:
			d.refuse(e, "artifacts", refusedArtifactsKeywords, artifactsKeywords)
		case e.value.null():
		case e.key == "name":
			out.Name = d.textOf(e.value, "name")
		case e.key == "paths":
			out.Paths = d.paths(e.value, "paths")
		case e.key == "exclude":
			out.Exclude = d.paths(e.value, "exclude")
		case e.key == "untracked":
			out.Untracked = d.boolean(e.value, "untracked")
		case e.key == "when":
			out.When = d.when(e.value, OnSuccess, OnFailure, Always)
		case e.key == "expire_in":
			out.ExpireIn = d.expireIn(e.value)
		}
	}
	if len(out.Paths) == 0 && !out.Untracked {
		d.addf(v.Position, "artifacts needs paths or untracked: true")
	}
	return out
}

func (d *decoder) paths(v *value, what string) []string {
	if v.kind == listKind && len(v.items) > maxListed {
		d.addf(v.Position, "%s has at most %d items", what, maxListed)
		return nil
	}
	return d.textOrList(v, what)
}

// ExpireNever is the value of expire_in for artifacts that stay until they are deleted.
const ExpireNever = "never"

func (d *decoder) expireIn(v *value) string {
	if v.kind == scalarKind && v.text == ExpireNever {
		return ExpireNever
	}
	d.duration(v, "expire_in")
	return v.text
}

const maxRules = 50

// rules decodes rules. The when of a rule without one is that of the job.
func (d *decoder) rules(v *value, when When) []Rule {
	if v.kind != listKind {
		d.addf(v.Position, "rules must be a list, not %s", v)
		return nil
	}
	if len(v.items) > maxRules {
		d.addf(v.Position, "a job has at most %d rules", maxRules)
		return nil
	}
	out := make([]Rule, 0, len(v.items))
	for _, item := range v.items {
		if item.kind == listKind { // an anchor of a list of rules
			out = append(out, d.rules(item, when)...)
			continue
		}
		if d.mapping(item, "an item of rules") {
			out = append(out, d.rule(item, when))
		}
	}
	if len(out) > maxRules {
		d.addf(v.Position, "a job has at most %d rules", maxRules)
		return nil
	}
	return out
}

func (d *decoder) rule(v *value, when When) Rule {
	out := Rule{When: when}
	if len(v.entries) == 0 {
		d.addf(v.Position, "a rule needs if or when")
	}
	for _, e := range v.entries {
		switch {
		case !ruleKeywords[e.key]:
			d.refuse(e, "a rule", refusedRuleKeywords, ruleKeywords)
		case e.value.null():
		case e.key == "if":
			out.If = d.condition(e.value)
		case e.key == "when":
			out.When = d.when(e.value, OnSuccess, OnFailure, Always, Never)
		case e.key == "allow_failure":
			out.AllowFailure = new(d.boolean(e.value, "allow_failure"))
		case e.key == "variables":
			out.Variables = d.variables(e.value, jobVariable)
		}
	}
	return out
}

func (d *decoder) condition(v *value) *condition.Condition {
	if v.kind != scalarKind {
		d.addf(v.Position, "if must be a text, not %s", v)
		return nil
	}
	out, err := condition.Parse(v.text)
	if syntax, ok := errors.AsType[*condition.SyntaxError](err); ok {
		d.addf(v.Position, "if: %s at character %d of %s", syntax.Message, syntax.Offset+1, quote(v.text))
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

func (d *decoder) retry(v *value) Retry {
	if v.kind != mapKind {
		return Retry{Max: d.integer(v, "retry", 0, maxRetries)}
	}
	out := Retry{Max: maxRetries}
	for _, e := range v.entries {
		switch {
		case !retryKeywords[e.key]:
			d.refuse(e, "retry", refusedRetryKeywords, retryKeywords)
		case e.value.null():
		case e.key == "max":
			out.Max = d.integer(e.value, "max", 0, maxRetries)
		case e.key == "when":
			out.When = d.retryWhen(e.value)
		}
	}
	return out
}

// maxExitCode is the largest exit status of Windows.
const maxExitCode = 1<<32 - 1

func (d *decoder) retryWhen(v *value) []string {
	reasons, known := d.textOrList(v, "when"), RetryReasons()
	for i, reason := range reasons {
		if reason == "" || slices.Contains(known, reason) {
			continue
		}
		at := v.Position
		if v.kind == listKind {
			at = v.items[i].Position
		}
		d.addf(at, "the reason for failure %s is not one of %s", quote(reason), strings.Join(known, ", "))
	}
	if slices.Contains(reasons, RetryAlways) {
		return nil
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}

func (d *decoder) allowFailure(v *value) AllowFailure {
	var out AllowFailure
	if v == nil {
		return out
	}
	if v.kind != mapKind {
		out.Always = d.boolean(v, "allow_failure")
		return out
	}
	for _, e := range v.entries {
		switch {
		case !allowFailureKeywords[e.key]:
			d.refuse(e, "allow_failure", nil, allowFailureKeywords)
		case e.value.null():
		case e.key == "exit_codes":
			out.ExitCodes = d.integers(e.value, "exit_codes", 0, maxExitCode)
		case e.key == "on_denied_admission":
			out.OnDeniedAdmission = d.boolean(e.value, "on_denied_admission")
		}
	}
	return out
}

func (d *decoder) parallel(v *value) Parallel {
	if v == nil {
		return Parallel{}
	}
	if v.kind != mapKind {
		return Parallel{Total: d.integer(v, "parallel", 1, d.limits.Parallel)}
	}
	for _, e := range v.entries {
		if !parallelKeywords[e.key] {
			d.refuse(e, "parallel", nil, parallelKeywords)
		}
	}
	matrix := v.get("matrix")
	if matrix == nil || matrix.kind != listKind || len(matrix.items) == 0 {
		d.addf(v.Position, "parallel must be a number or have a matrix, which is a list of variables with their values")
		return Parallel{}
	}
	var out Parallel
	for _, item := range matrix.items {
		if d.mapping(item, "an item of matrix") {
			out.Matrix = append(out.Matrix, d.axes(item))
		}
	}
	if copies := out.Copies(); copies > d.limits.Parallel {
		d.addf(matrix.Position, "the matrix makes %d jobs: at most %d are allowed", copies, d.limits.Parallel)
		return Parallel{}
	}
	return out
}

const maxAxes = 20

func (d *decoder) axes(v *value) []Axis {
	if len(v.entries) == 0 {
		d.addf(v.Position, "an item of matrix needs a variable")
	}
	if len(v.entries) > maxAxes {
		d.addf(v.Position, "an item of matrix has at most %d variables", maxAxes)
		return nil
	}
	out := make([]Axis, 0, len(v.entries))
	for _, e := range v.entries {
		if !variableName.MatchString(e.key) {
			d.addf(e.Position, "the name of a variable has letters, digits and _ and starts with no digit, not %s", quote(e.key))
		}
		values := d.textOrList(e.value, e.key)
		if len(values) == 0 {
			d.addf(e.value.Position, "the variable %s needs a value", e.key)
		}
		out = append(out, Axis{Name: e.key, Values: values})
	}
	return out
}
