package cifile

import (
	"maps"
	"slices"
	"strings"

	"lockstep.internal/libs/yamlfile"
)

const maxExtends = 11 // levels, as in GitLab

// extended is a job or template with what it extends.
type extended struct {
	value  *yamlfile.Value // nil if a problem was reported
	levels int
}

// extend returns the job or template with what it extends. path holds the names that extend it.
func (d *decoder) extend(e yamlfile.Entry, path []string) extended {
	if x, ok := d.extended[e.Key]; ok {
		return x
	}
	x := d.extendOnce(e, append(slices.Clone(path), e.Key))
	d.extended[e.Key] = x
	return x
}

func (d *decoder) extendOnce(e yamlfile.Entry, path []string) extended {
	list := e.Value.Get("extends")
	if list == nil {
		return extended{value: e.Value}
	}
	base, levels := &yamlfile.Value{Kind: yamlfile.Map}, 0
	for i, name := range d.TextOrList(list, "extends") {
		at := list.Position
		if list.Kind == yamlfile.List {
			at = list.Items[i].Position
		}
		parent, ok := d.parent(name, at, path)
		if !ok {
			return extended{}
		}
		if levels = max(levels, parent.levels+1); levels > maxExtends {
			d.Addf(at, "extends has more than %d levels", maxExtends)
			return extended{}
		}
		base = yamlfile.Merge(base, parent.value)
		if d.weight += base.Weight; d.weight > d.limits.Weight {
			d.Addf(at, "the file is too large after extends was applied: at most a weight of %d is allowed", d.limits.Weight)
			return extended{}
		}
	}
	return extended{value: yamlfile.Merge(base, e.Value), levels: levels}
}

// parent returns the job or template that the last one of path extends. It returns false after reporting a problem.
func (d *decoder) parent(name string, at Position, path []string) (extended, bool) {
	e, ok := d.jobs[name]
	switch {
	case !ok:
		d.Addf(at, "extends names %s, which is not in the file%s", yamlfile.Quote(name),
			d.Suggestion(name, slices.Collect(maps.Keys(d.jobs))))
		return extended{}, false
	case slices.Contains(path, name):
		d.Addf(at, "extends runs in a circle: %s", strings.Join(append(path, name), " → "))
		return extended{}, false
	case len(path) > maxExtends:
		d.Addf(at, "extends has more than %d levels", maxExtends)
		return extended{}, false
	}
	x := d.extend(e, path)
	return x, x.value != nil
}

// defaultJob returns the keywords of default.
func (d *decoder) defaultJob(v *yamlfile.Value) Job {
	if v == nil || !d.Mapping(v, "default") {
		return Job{}
	}
	for _, e := range v.Entries {
		if !defaultKeywords[e.Key] {
			d.refuse(e, "default", refusedJobKeywords, defaultKeywords)
		}
	}
	return d.inheritable(v, Job{})
}
