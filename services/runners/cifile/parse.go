package cifile

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Parse parses the content of a file. The name is for messages. The error is an *[Error].
func Parse(name string, content []byte, limits Limits) (*File, error) {
	limits = limits.withDefaults()
	found := &problems{}
	file := parse(name, content, limits, found)
	if err := NewError(name, found.found); err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			e.More += found.more
		}
		return nil, err
	}
	return file, nil
}

func parse(name string, content []byte, limits Limits, found *problems) *File {
	start := Position{Line: 1, Column: 1}
	if len(content) > limits.Bytes {
		found.addf(start, "the file has %d bytes: at most %d are allowed", len(content), limits.Bytes)
		return nil
	}
	if !utf8.Valid(content) {
		found.addf(invalidAt(content), "the file is not UTF-8")
		return nil
	}
	document := document(content, found)
	if document == nil {
		return nil
	}
	r := &reader{problems: found, limits: limits, done: map[*yaml.Node]*value{}, reading: map[*yaml.Node]bool{}}
	root := r.read(document, 1)
	if root == nil || len(found.found) > 0 {
		return nil
	}
	if root.weight > limits.Weight {
		found.addf(start, "the file is too large after its aliases were replaced: weight %d, at most %d is allowed",
			root.weight, limits.Weight)
		return nil
	}
	if root.null() {
		found.addf(start, "the file is empty: write a job with a script")
		return nil
	}
	if root.kind != mapKind {
		found.addf(root.Position, "the file must be a mapping of jobs, not %s", root)
		return nil
	}
	d := &decoder{problems: found, limits: limits, root: root}
	return d.file(name)
}

func invalidAt(content []byte) Position {
	at := 0
	for at < len(content) {
		r, size := utf8.DecodeRune(content[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	before := content[:at]
	line := bytes.Count(before, []byte("\n")) + 1
	return Position{Line: line, Column: utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1}
}

// document returns the root node of the only document; nil if there is none.
func document(content []byte, found *problems) *yaml.Node {
	start := Position{Line: 1, Column: 1}
	decode := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	if err := decode.Decode(&first); err != nil {
		if errors.Is(err, io.EOF) {
			found.addf(start, "the file is empty: write a job with a script")
		} else {
			found.addf(syntaxError(err, content))
		}
		return nil
	}
	switch err := decode.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		found.addf(syntaxError(err, content))
		return nil
	default:
		at := Position{Line: second.Line, Column: second.Column}
		found.addf(at, "the file has a second document: write all jobs into one; a header with spec is not supported")
		return nil
	}
	if len(first.Content) != 1 {
		found.addf(start, "the file is empty: write a job with a script")
		return nil
	}
	return first.Content[0]
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntaxError returns the arguments of addf for an error of the YAML library, which names the line only. The column is
// that of the first character that is no space.
func syntaxError(err error, content []byte) (Position, string, string) {
	at := Position{Line: 1, Column: 1}
	message := err.Error()
	if m := syntaxLine.FindStringSubmatch(message); m != nil {
		message = m[2]
		if line, err := strconv.Atoi(m[1]); err == nil && line > 0 {
			at.Line = line
		}
	}
	lines := strings.Split(string(content), "\n")
	at.Line = min(at.Line, len(lines))
	line := lines[at.Line-1]
	at.Column = len(line) - len(strings.TrimLeft(line, " \t")) + 1
	return at, "not valid YAML: %s", message
}

// decoder turns values into a File.
type decoder struct {
	*problems

	limits   Limits
	root     *value
	stages   []string
	defaults Job
	jobs     map[string]entry // jobs and templates
	extended map[string]extended
	weight   int // of all extended
}

func (d *decoder) file(name string) *File {
	out := &File{Name: name, Stages: d.stageList(d.root.get("stages"))}
	d.stages = out.Stages
	d.extended, d.jobs = map[string]extended{}, map[string]entry{}
	for _, e := range d.root.entries {
		if _, refused := refusedFileKeywords[e.key]; !refused && !fileKeywords[e.key] && e.value.kind == mapKind {
			d.jobs[e.key] = e
		}
	}
	d.defaults = d.defaultJob(d.root.get("default"))
	out.Variables = d.variables(d.root.get("variables"), fileVariable)
	for _, e := range d.root.entries {
		if fileKeywords[e.key] {
			continue
		}
		if len(out.Jobs) > d.limits.Jobs {
			break // checkTotals reports it
		}
		if hint, ok := refusedFileKeywords[e.key]; ok {
			d.addf(e.Position, "the keyword %s is not supported: %s", e.key, hint)
			continue
		}
		template := strings.HasPrefix(e.key, ".")
		if e.value.kind != mapKind && template {
			continue // content for anchors
		}
		if e.value.kind != mapKind {
			d.addf(e.Position, "%s is neither a keyword of the file nor a job: a job is a mapping with a script", quote(e.key))
			continue
		}
		d.checkJobName(e)
		if x := d.extend(e, nil); x.value != nil && !template {
			out.Jobs = append(out.Jobs, d.job(e, x.value))
		}
	}
	d.checkTotals(out)
	d.checkNeeds(out)
	return out
}

var fileKeywords = map[string]bool{"stages": true, "variables": true, "default": true}

func (d *decoder) stageList(v *value) []string {
	stages := []string{"build", "test", "deploy"}
	if v != nil {
		stages = d.texts(v, "stages")
		if len(stages) == 0 {
			d.addf(v.Position, "stages needs at least one stage")
		}
	}
	out := []string{StagePre}
	for i, s := range stages {
		switch {
		case s == "": // a problem is reported
		case s == StagePre || s == StagePost: // they are first and last wherever they stand
		case slices.Contains(out, s):
			d.addf(v.items[i].Position, "the stage %s is already in the list", quote(s))
		default:
			out = append(out, s)
		}
	}
	return append(out, StagePost)
}

const maxName = 255 // bytes, as in GitLab

func (d *decoder) checkJobName(e entry) {
	switch {
	case e.key == "" || strings.TrimSpace(e.key) == "":
		d.addf(e.Position, "a job needs a name")
	case len(e.key) > maxName:
		d.addf(e.Position, "the name of a job has at most %d bytes", maxName)
	case strings.ContainsFunc(e.key, isControl):
		d.addf(e.Position, "the name of a job has a control character")
	}
}

func isControl(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }

// checkTotals checks the number of jobs and the size of what is stored for them.
func (d *decoder) checkTotals(f *File) {
	if len(f.Jobs) == 0 && len(d.found) == 0 {
		d.addf(d.root.Position, "the file has no job: a job is a mapping with a script")
		return
	}
	common, jobs, total := 0, 0, 0
	for _, v := range f.Variables {
		common += len(v.Name) + len(v.Value)
	}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		copies := j.Parallel.Copies()
		jobs += copies
		total += copies * (common + j.size())
		if jobs > d.limits.Jobs {
			d.addf(j.Position, "the file has more than %d jobs", d.limits.Jobs)
			return
		}
		if total > d.limits.Total {
			d.addf(j.Position, "the definitions of the jobs have more than %d bytes: move long scripts into files",
				d.limits.Total)
			return
		}
	}
}

// size returns the bytes of the texts of the job.
func (j *Job) size() int {
	n := len(j.Name) + len(j.Stage)
	for _, list := range [][]string{j.BeforeScript, j.Script, j.AfterScript, j.Tags, j.Retry.When} {
		for _, s := range list {
			n += len(s)
		}
	}
	for _, need := range j.Needs {
		n += len(need.Job)
	}
	if a := j.Artifacts; a != nil {
		n += len(a.Name)
		for _, s := range slices.Concat(a.Paths, a.Exclude) {
			n += len(s)
		}
	}
	variables := j.Variables
	for _, r := range j.Rules {
		variables = slices.Concat(variables, r.Variables)
	}
	for _, v := range variables {
		n += len(v.Name) + len(v.Value)
	}
	return n
}

func (d *decoder) checkNeeds(f *File) {
	names := map[string]bool{}
	for name := range d.jobs {
		if !strings.HasPrefix(name, ".") {
			names[name] = true
		}
	}
	for i := range f.Jobs {
		for _, need := range f.Jobs[i].Needs {
			switch {
			case need.Job == f.Jobs[i].Name:
				d.addf(need.Position, "the job %s needs itself", quote(need.Job))
			case !names[need.Job] && !need.Optional:
				d.addf(need.Position, "needs names the job %s, which is not in the file%s",
					quote(need.Job), d.suggestion(need.Job, slices.Collect(maps.Keys(names))))
			}
		}
	}
}
