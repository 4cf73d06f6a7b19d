package cifile

import (
	"maps"
	"slices"
	"strings"

	"lockstep.internal/libs/yamlfile"
)

// Parse parses the content of a file. The name is for messages. The error is an *[Error].
func Parse(name string, content []byte, limits Limits) (*File, error) {
	limits = limits.withDefaults()
	found := &yamlfile.Problems{}
	file := parse(name, content, limits, found)
	if err := found.Err(name); err != nil {
		return nil, err
	}
	return file, nil
}

func parse(name string, content []byte, limits Limits, found *yamlfile.Problems) *File {
	format := yamlfile.Format{
		Bytes: limits.Bytes, Depth: limits.Depth, Weight: limits.Weight,
		Content:     "write a job with a script",
		OneDocument: "write all jobs into one; a header with spec is not supported",
		Tags:        map[string]string{"!reference": "use extends or a YAML anchor"},
	}
	root := format.Read(content, "a mapping of jobs", found)
	if root == nil {
		return nil
	}
	d := &decoder{Problems: found, limits: limits, root: root}
	return d.file(name)
}

// decoder turns values into a File.
type decoder struct {
	*yamlfile.Problems

	limits   Limits
	root     *yamlfile.Value
	stages   []string
	defaults Job
	jobs     map[string]yamlfile.Entry // jobs and templates
	extended map[string]extended
	weight   int // of all extended
}

func (d *decoder) file(name string) *File {
	out := &File{Name: name, Stages: d.stageList(d.root.Get("stages"))}
	d.stages = out.Stages
	d.extended, d.jobs = map[string]extended{}, map[string]yamlfile.Entry{}
	for _, e := range d.root.Entries {
		if _, refused := refusedFileKeywords[e.Key]; !refused && !fileKeywords[e.Key] && e.Value.Kind == yamlfile.Map {
			d.jobs[e.Key] = e
		}
	}
	d.defaults = d.defaultJob(d.root.Get("default"))
	out.Variables = d.variables(d.root.Get("variables"), fileVariable)
	for _, e := range d.root.Entries {
		if fileKeywords[e.Key] {
			continue
		}
		if len(out.Jobs) > d.limits.Jobs {
			break // checkTotals reports it
		}
		if hint, ok := refusedFileKeywords[e.Key]; ok {
			d.Addf(e.Position, "the keyword %s is not supported: %s", e.Key, hint)
			continue
		}
		template := strings.HasPrefix(e.Key, ".")
		if e.Value.Kind != yamlfile.Map && template {
			continue // content for anchors
		}
		if e.Value.Kind != yamlfile.Map {
			d.Addf(e.Position, "%s is neither a keyword of the file nor a job: a job is a mapping with a script",
				yamlfile.Quote(e.Key))
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

func (d *decoder) stageList(v *yamlfile.Value) []string {
	stages := []string{"build", "test", "deploy"}
	if v != nil {
		stages = d.Texts(v, "stages")
		if len(stages) == 0 {
			d.Addf(v.Position, "stages needs at least one stage")
		}
	}
	out := []string{StagePre}
	for i, s := range stages {
		switch {
		case s == "": // a problem is reported
		case s == StagePre || s == StagePost: // they are first and last wherever they stand
		case slices.Contains(out, s):
			d.Addf(v.Items[i].Position, "the stage %s is already in the list", yamlfile.Quote(s))
		default:
			out = append(out, s)
		}
	}
	return append(out, StagePost)
}

const maxName = 255 // bytes, as in GitLab

func (d *decoder) checkJobName(e yamlfile.Entry) {
	switch {
	case e.Key == "" || strings.TrimSpace(e.Key) == "":
		d.Addf(e.Position, "a job needs a name")
	case len(e.Key) > maxName:
		d.Addf(e.Position, "the name of a job has at most %d bytes", maxName)
	case strings.ContainsFunc(e.Key, isControl):
		d.Addf(e.Position, "the name of a job has a control character")
	}
}

func isControl(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }

// checkTotals checks the number of jobs and the size of what is stored for them.
func (d *decoder) checkTotals(f *File) {
	if len(f.Jobs) == 0 && len(d.Found) == 0 {
		d.Addf(d.root.Position, "the file has no job: a job is a mapping with a script")
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
			d.Addf(j.Position, "the file has more than %d jobs", d.limits.Jobs)
			return
		}
		if total > d.limits.Total {
			d.Addf(j.Position, "the definitions of the jobs have more than %d bytes: move long scripts into files",
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
				d.Addf(need.Position, "the job %s needs itself", yamlfile.Quote(need.Job))
			case !names[need.Job] && !need.Optional:
				d.Addf(need.Position, "needs names the job %s, which is not in the file%s",
					yamlfile.Quote(need.Job), d.Suggestion(need.Job, slices.Collect(maps.Keys(names))))
			}
		}
	}
}
