package cifile

import (
	"maps"
	"slices"
	"strings"
)

const maxExtends = 11 // levels, as in GitLab

// extended is a job or template with what it extends.
type extended struct {
	value  *value // nil if a problem was reported
	levels int
}

// extend returns the job or template with what it extends. path holds the names that extend it.
func (d *decoder) extend(e entry, path []string) extended {
	if x, ok := d.extended[e.key]; ok {
		return x
	}
	x := d.extendOnce(e, append(slices.Clone(path), e.key))
	d.extended[e.key] = x
	return x
}

func (d *decoder) extendOnce(e entry, path []string) extended {
	list := e.value.get("extends")
	if list == nil {
		return extended{value: e.value}
	}
	base, levels := &value{kind: mapKind}, 0
	for i, name := range d.textOrList(list, "extends") {
		at := list.Position
		if list.kind == listKind {
			at = list.items[i].Position
		}
		parent, ok := d.parent(name, at, path)
		if !ok {
			return extended{}
		}
		if levels = max(levels, parent.levels+1); levels > maxExtends {
			d.addf(at, "extends has more than %d levels", maxExtends)
			return extended{}
		}
		base = merge(base, parent.value)
		if d.weight += base.weight; d.weight > d.limits.Weight {
			d.addf(at, "the file is too large after extends was applied: at most a weight of %d is allowed", d.limits.Weight)
			return extended{}
		}
	}
	return extended{value: merge(base, e.value), levels: levels}
}

// parent returns the job or template that the last one of path extends. It returns false after reporting a problem.
func (d *decoder) parent(name string, at Position, path []string) (extended, bool) {
	e, ok := d.jobs[name]
	switch {
	case !ok:
		d.addf(at, "extends names %s, which is not in the file%s", quote(name),
			d.suggestion(name, slices.Collect(maps.Keys(d.jobs))))
		return extended{}, false
	case slices.Contains(path, name):
		d.addf(at, "extends runs in a circle: %s", strings.Join(append(path, name), " → "))
		return extended{}, false
	case len(path) > maxExtends:
		d.addf(at, "extends has more than %d levels", maxExtends)
		return extended{}, false
	}
	x := d.extend(e, path)
	return x, x.value != nil
}

// defaultJob returns the keywords of default.
func (d *decoder) defaultJob(v *value) Job {
	if v == nil || !d.mapping(v, "default") {
		return Job{}
	}
	for _, e := range v.entries {
		if !defaultKeywords[e.key] {
			d.refuse(e, "default", refusedJobKeywords, defaultKeywords)
		}
	}
	return d.inheritable(v, Job{})
}
