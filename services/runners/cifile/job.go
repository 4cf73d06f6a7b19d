package cifile

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"lockstep.internal/libs/yamlfile"

	"lockstep.internal/services/runners/duration"
)

// job decodes a job. The value has what the job extends.
func (d *decoder) job(e yamlfile.Entry, v *yamlfile.Value) Job {
	for _, keyword := range v.Entries {
		if !jobKeywords[keyword.Key] {
			d.refuse(keyword, "a job", refusedJobKeywords, jobKeywords)
		}
	}
	j := d.inheritable(v, d.defaults)
	j.Position, j.Name, j.When = e.Position, e.Key, OnSuccess
	j.Stage = d.stage(e, v.Get("stage"))
	j.Variables = d.variables(v.Get("variables"), jobVariable)
	j.AllowFailure = d.allowFailure(v.Get("allow_failure"))
	j.Parallel = d.parallel(v.Get("parallel"))
	if script := v.Get("script"); script == nil {
		d.Addf(e.Position, "the job %s needs a script", yamlfile.Quote(e.Key))
	} else {
		before := len(d.Found)
		if j.Script = d.script(script, "script"); len(j.Script) == 0 && len(d.Found) == before {
			d.Addf(script.Position, "the script of the job %s is empty", yamlfile.Quote(e.Key))
		}
	}
	if when := v.Get("when"); when != nil {
		j.When = d.when(when, OnSuccess, OnFailure, Always)
	}
	if needs := v.Get("needs"); needs != nil {
		j.Needs, j.HasNeeds = d.needs(needs), true
	}
	if rules := v.Get("rules"); rules != nil {
		j.Rules, j.HasRules = d.rules(rules, j.When), true
	}
	return j
}

// inheritable decodes the keywords that default may have. A keyword that v has not is that of defaults.
func (d *decoder) inheritable(v *yamlfile.Value, defaults Job) Job {
	out := defaults // shares the decoded lists, so that a long default costs nothing for each job
	if script := v.Get("before_script"); script != nil {
		out.BeforeScript = d.script(script, "before_script")
	}
	if script := v.Get("after_script"); script != nil {
		out.AfterScript = d.script(script, "after_script")
	}
	if tags := v.Get("tags"); tags != nil {
		out.Tags = d.tags(tags)
	}
	if artifacts := v.Get("artifacts"); artifacts != nil {
		out.Artifacts = d.artifacts(artifacts)
	}
	if timeout := v.Get("timeout"); timeout != nil {
		out.Timeout = d.timeout(timeout)
	}
	if retry := v.Get("retry"); retry != nil {
		out.Retry = d.retry(retry)
	}
	return out
}

func (d *decoder) stage(e yamlfile.Entry, v *yamlfile.Value) string {
	if v == nil {
		const name = "test"
		if !slices.Contains(d.stages, name) {
			d.Addf(e.Position, "the job %s has no stage, and stages has no %s: add a stage to the job",
				yamlfile.Quote(e.Key), name)
		}
		return name
	}
	name := d.Text(v, "stage")
	if name != "" && !slices.Contains(d.stages, name) {
		d.Addf(v.Position, "the stage %s is not in stages: %s%s", yamlfile.Quote(name),
			strings.Join(d.stages[1:len(d.stages)-1], ", "), d.Suggestion(name, d.stages))
	}
	return name
}

// script accepts a text or a list of texts and lists, which YAML anchors make.
func (d *decoder) script(v *yamlfile.Value, keyword string) []string {
	if v.Kind == yamlfile.List {
		var out []string
		for _, item := range v.Items {
			out = append(out, d.script(item, keyword)...)
		}
		return out
	}
	if v.Kind == yamlfile.Scalar && v.Tag == "!!str" {
		return []string{v.Text}
	}
	d.Addf(v.Position, "a line of %s must be a text, not %s: quote the whole line", keyword, v)
	return nil
}

const maxTags = 50

func (d *decoder) tags(v *yamlfile.Value) []string {
	tags := d.TextOrList(v, "tags")
	if len(tags) > maxTags {
		d.Addf(v.Position, "a job has at most %d tags", maxTags)
	}
	for i, tag := range tags {
		at := v.Position
		if v.Kind == yamlfile.List && i < len(v.Items) {
			at = v.Items[i].Position
		}
		switch {
		case tag == "" || len(tag) > maxName || strings.ContainsFunc(tag, isControl):
			d.Addf(at, "a tag has 1 to %d bytes and no control characters", maxName)
		case strings.Contains(tag, "$"):
			d.Addf(at, "the tag %s contains a variable, which is not supported: write the tag itself", yamlfile.Quote(tag))
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

func (d *decoder) when(v *yamlfile.Value, allowed ...When) When {
	text := When(d.Text(v, "when"))
	switch {
	case slices.Contains(allowed, text):
	case text == "manual":
		d.Addf(v.Position, "when: manual is not supported: use rules with if and start another pipeline with a variable")
	case text == "delayed":
		d.Addf(v.Position, "when: delayed is not supported: use when: on_success")
	case text == Never:
		d.Addf(v.Position, "when: never stands in rules only")
	default:
		words := make([]string, len(allowed))
		for i, w := range allowed {
			words[i] = string(w)
		}
		d.Addf(v.Position, "when must be one of %s, not %s", strings.Join(words, ", "), v)
	}
	return text
}

const (
	minTimeout = 10 * time.Second
	maxTimeout = 30 * 24 * time.Hour
)

func (d *decoder) timeout(v *yamlfile.Value) time.Duration {
	timeout, ok := d.duration(v, "timeout")
	if ok && (timeout < minTimeout || timeout > maxTimeout) {
		d.Addf(v.Position, "timeout must be between 10 seconds and 30 days, not %s", v)
	}
	return timeout
}

func (d *decoder) duration(v *yamlfile.Value, keyword string) (time.Duration, bool) {
	if v.Kind != yamlfile.Scalar {
		d.Addf(v.Position, "%s must be a duration such as 1h 30m, not %s", keyword, v)
		return 0, false
	}
	out, err := duration.Parse(v.Text)
	if err != nil {
		d.Addf(v.Position, "%s: %s", keyword, err)
		return 0, false
	}
	return out, true
}

const maxNeeds = 50 // as in GitLab

func (d *decoder) needs(v *yamlfile.Value) []Need {
	out := []Need{}
	if v.Kind != yamlfile.List {
		d.Addf(v.Position, "needs must be a list of jobs, not %s", v)
		return out
	}
	if len(v.Items) > maxNeeds {
		d.Addf(v.Position, "a job has at most %d needs", maxNeeds)
		return out
	}
	seen := map[string]bool{}
	for _, item := range v.Items {
		need := Need{Position: item.Position, Artifacts: true}
		if item.Kind == yamlfile.Map {
			d.need(&need, item)
		} else {
			need.Job = d.Text(item, "an item of needs")
		}
		if need.Job == "" {
			continue
		}
		if seen[need.Job] {
			d.Addf(item.Position, "needs names the job %s twice", yamlfile.Quote(need.Job))
		}
		seen[need.Job] = true
		out = append(out, need)
	}
	return out
}

func (d *decoder) need(out *Need, v *yamlfile.Value) {
	for _, e := range v.Entries {
		switch {
		case !needKeywords[e.Key]:
			d.refuse(e, "an item of needs", refusedNeedKeywords, needKeywords)
		case e.Value.Null():
		case e.Key == "job":
			out.Job = d.Text(e.Value, "job")
		case e.Key == "artifacts":
			out.Artifacts = d.Boolean(e.Value, "artifacts")
		case e.Key == "optional":
			out.Optional = d.Boolean(e.Value, "optional")
		}
	}
	if v.Get("job") == nil {
		d.Addf(v.Position, "an item of needs must name a job")
	}
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`)

// variableLevel is where a variable is written.
type variableLevel int

const (
	fileVariable variableLevel = iota
	jobVariable
)

func (d *decoder) variables(v *yamlfile.Value, level variableLevel) []Variable {
	if v == nil {
		return nil
	}
	if v.Kind != yamlfile.Map {
		d.Addf(v.Position, "variables must be a mapping of names and values, not %s", v)
		return nil
	}
	var out []Variable
	for _, e := range v.Entries {
		if !variableName.MatchString(e.Key) {
			d.Addf(e.Position, "the name of a variable has letters, digits and _ and starts with no digit, not %s",
				yamlfile.Quote(e.Key))
		}
		variable := Variable{Name: e.Key}
		switch e.Value.Kind {
		case yamlfile.Map:
			d.variable(&variable, e.Value, level)
		case yamlfile.Scalar:
			variable.Value = scalarText(e.Value)
		default:
			d.Addf(e.Value.Position, "the value of %s must be a text or a number, not a list", e.Key)
		}
		out = append(out, variable)
	}
	return out
}

func (d *decoder) variable(out *Variable, v *yamlfile.Value, level variableLevel) {
	known := variableKeywords
	if level == fileVariable {
		known = fileVariableKeywords
	}
	for _, e := range v.Entries {
		switch {
		case !known[e.Key]:
			d.refuse(e, "a variable", nil, known)
		case e.Value.Null():
		case e.Key == "expand":
			out.Raw = !d.Boolean(e.Value, "expand")
		case e.Key == "value" && e.Value.Kind != yamlfile.Scalar:
			d.Addf(e.Value.Position, "the value of %s must be a text or a number, not %s", out.Name, e.Value)
		case e.Key == "value":
			out.Value = scalarText(e.Value)
		}
	}
}

// scalarText returns the text of a scalar; null is the empty text.
func scalarText(v *yamlfile.Value) string {
	if v.Null() {
		return ""
	}
	return v.Text
}
