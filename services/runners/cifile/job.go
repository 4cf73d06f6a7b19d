package cifile

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"lockstep.internal/services/runners/duration"
)

// job decodes a job. The value has what the job extends.
func (d *decoder) job(e entry, v *value) Job {
	for _, keyword := range v.entries {
		if !jobKeywords[keyword.key] {
			d.refuse(keyword, "a job", refusedJobKeywords, jobKeywords)
		}
	}
	j := d.inheritable(v, d.defaults)
	j.Position, j.Name, j.When = e.Position, e.key, OnSuccess
	j.Stage = d.stage(e, v.get("stage"))
	j.Variables = d.variables(v.get("variables"), jobVariable)
	j.AllowFailure = d.allowFailure(v.get("allow_failure"))
	j.Parallel = d.parallel(v.get("parallel"))
	if script := v.get("script"); script == nil {
		d.addf(e.Position, "the job %s needs a script", quote(e.key))
	} else {
		before := len(d.found)
		if j.Script = d.script(script, "script"); len(j.Script) == 0 && len(d.found) == before {
			d.addf(script.Position, "the script of the job %s is empty", quote(e.key))
		}
	}
	if when := v.get("when"); when != nil {
		j.When = d.when(when, OnSuccess, OnFailure, Always)
	}
	if needs := v.get("needs"); needs != nil {
		j.Needs, j.HasNeeds = d.needs(needs), true
	}
	if rules := v.get("rules"); rules != nil {
		j.Rules, j.HasRules = d.rules(rules, j.When), true
	}
	return j
}

// inheritable decodes the keywords that default may have. A keyword that v has not is that of defaults.
func (d *decoder) inheritable(v *value, defaults Job) Job {
	out := defaults // shares the decoded lists, so that a long default costs nothing for each job
	if script := v.get("before_script"); script != nil {
		out.BeforeScript = d.script(script, "before_script")
	}
	if script := v.get("after_script"); script != nil {
		out.AfterScript = d.script(script, "after_script")
	}
	if tags := v.get("tags"); tags != nil {
		out.Tags = d.tags(tags)
	}
	if artifacts := v.get("artifacts"); artifacts != nil {
		out.Artifacts = d.artifacts(artifacts)
	}
	if timeout := v.get("timeout"); timeout != nil {
		out.Timeout = d.timeout(timeout)
	}
	if retry := v.get("retry"); retry != nil {
		out.Retry = d.retry(retry)
	}
	return out
}

func (d *decoder) stage(e entry, v *value) string {
	if v == nil {
		const name = "test"
		if !slices.Contains(d.stages, name) {
			d.addf(e.Position, "the job %s has no stage, and stages has no %s: add a stage to the job", quote(e.key), name)
		}
		return name
	}
	name := d.textOf(v, "stage")
	if name != "" && !slices.Contains(d.stages, name) {
		d.addf(v.Position, "the stage %s is not in stages: %s%s", quote(name),
			strings.Join(d.stages[1:len(d.stages)-1], ", "), d.suggestion(name, d.stages))
	}
	return name
}

// script accepts a text or a list of texts and lists, which YAML anchors make.
func (d *decoder) script(v *value, keyword string) []string {
	if v.kind == listKind {
		var out []string
		for _, item := range v.items {
			out = append(out, d.script(item, keyword)...)
		}
		return out
	}
	if v.kind == scalarKind && v.tag == "!!str" {
		return []string{v.text}
	}
	d.addf(v.Position, "a line of %s must be a text, not %s: quote the whole line", keyword, v)
	return nil
}

const maxTags = 50

func (d *decoder) tags(v *value) []string {
	tags := d.textOrList(v, "tags")
	if len(tags) > maxTags {
		d.addf(v.Position, "a job has at most %d tags", maxTags)
	}
	for i, tag := range tags {
		at := v.Position
		if v.kind == listKind && i < len(v.items) {
			at = v.items[i].Position
		}
		switch {
		case tag == "" || len(tag) > maxName || strings.ContainsFunc(tag, isControl):
			d.addf(at, "a tag has 1 to %d bytes and no control characters", maxName)
		case strings.Contains(tag, "$"):
			d.addf(at, "the tag %s contains a variable, which is not supported: write the tag itself", quote(tag))
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

func (d *decoder) when(v *value, allowed ...When) When {
	text := When(d.textOf(v, "when"))
	switch {
	case slices.Contains(allowed, text):
	case text == "manual":
		d.addf(v.Position, "when: manual is not supported: use rules with if and start another pipeline with a variable")
	case text == "delayed":
		d.addf(v.Position, "when: delayed is not supported: use when: on_success")
	case text == Never:
		d.addf(v.Position, "when: never stands in rules only")
	default:
		words := make([]string, len(allowed))
		for i, w := range allowed {
			words[i] = string(w)
		}
		d.addf(v.Position, "when must be one of %s, not %s", strings.Join(words, ", "), v)
	}
	return text
}

const (
	minTimeout = 10 * time.Second
	maxTimeout = 30 * 24 * time.Hour
)

func (d *decoder) timeout(v *value) time.Duration {
	timeout, ok := d.duration(v, "timeout")
	if ok && (timeout < minTimeout || timeout > maxTimeout) {
		d.addf(v.Position, "timeout must be between 10 seconds and 30 days, not %s", v)
	}
	return timeout
}

func (d *decoder) duration(v *value, keyword string) (time.Duration, bool) {
	if v.kind != scalarKind {
		d.addf(v.Position, "%s must be a duration such as 1h 30m, not %s", keyword, v)
		return 0, false
	}
	out, err := duration.Parse(v.text)
	if err != nil {
		d.addf(v.Position, "%s: %s", keyword, err)
		return 0, false
	}
	return out, true
}

const maxNeeds = 50 // as in GitLab

func (d *decoder) needs(v *value) []Need {
	out := []Need{}
	if v.kind != listKind {
		d.addf(v.Position, "needs must be a list of jobs, not %s", v)
		return out
	}
	if len(v.items) > maxNeeds {
		d.addf(v.Position, "a job has at most %d needs", maxNeeds)
		return out
	}
	seen := map[string]bool{}
	for _, item := range v.items {
		need := Need{Position: item.Position, Artifacts: true}
		if item.kind == mapKind {
			d.need(&need, item)
		} else {
			need.Job = d.textOf(item, "an item of needs")
		}
		if need.Job == "" {
			continue
		}
		if seen[need.Job] {
			d.addf(item.Position, "needs names the job %s twice", quote(need.Job))
		}
		seen[need.Job] = true
		out = append(out, need)
	}
	return out
}

func (d *decoder) need(out *Need, v *value) {
	for _, e := range v.entries {
		switch {
		case !needKeywords[e.key]:
			d.refuse(e, "an item of needs", refusedNeedKeywords, needKeywords)
		case e.value.null():
		case e.key == "job":
			out.Job = d.textOf(e.value, "job")
		case e.key == "artifacts":
			out.Artifacts = d.boolean(e.value, "artifacts")
		case e.key == "optional":
			out.Optional = d.boolean(e.value, "optional")
		}
	}
	if v.get("job") == nil {
		d.addf(v.Position, "an item of needs must name a job")
	}
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`)

// variableLevel is where a variable is written.
type variableLevel int

const (
	fileVariable variableLevel = iota
	jobVariable
)

func (d *decoder) variables(v *value, level variableLevel) []Variable {
	if v == nil {
		return nil
	}
	if v.kind != mapKind {
		d.addf(v.Position, "variables must be a mapping of names and values, not %s", v)
		return nil
	}
	var out []Variable
	for _, e := range v.entries {
		if !variableName.MatchString(e.key) {
			d.addf(e.Position, "the name of a variable has letters, digits and _ and starts with no digit, not %s", quote(e.key))
		}
		variable := Variable{Name: e.key}
		switch e.value.kind {
		case mapKind:
			d.variable(&variable, e.value, level)
		case scalarKind:
			variable.Value = scalarText(e.value)
		default:
			d.addf(e.value.Position, "the value of %s must be a text or a number, not a list", e.key)
		}
		out = append(out, variable)
	}
	return out
}

func (d *decoder) variable(out *Variable, v *value, level variableLevel) {
	known := variableKeywords
	if level == fileVariable {
		known = fileVariableKeywords
	}
	for _, e := range v.entries {
		switch {
		case !known[e.key]:
			d.refuse(e, "a variable", nil, known)
		case e.value.null():
		case e.key == "expand":
			out.Raw = !d.boolean(e.value, "expand")
		case e.key == "value" && e.value.kind != scalarKind:
			d.addf(e.value.Position, "the value of %s must be a text or a number, not %s", out.Name, e.value)
		case e.key == "value":
			out.Value = scalarText(e.value)
		}
	}
}

// scalarText returns the text of a scalar; null is the empty text.
func scalarText(v *value) string {
	if v.null() {
		return ""
	}
	return v.text
}
