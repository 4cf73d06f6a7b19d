package policy

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"cel.dev/cel-go/cel"

	"lockstep.internal/libs/yamlfile"
	"lockstep.internal/services/admission/payload"
)

// Limits of a policy.
const (
	MaxBytes   = 256 << 10
	MaxRules   = 100
	MaxEntries = 1000 // of a list, and of each list of an entry
	maxDepth   = 16
	maxWeight  = 1 << 20
)

// Parse parses a policy. The name is for messages. The error is a *[yamlfile.Error].
func Parse(name string, content []byte) (*Policy, error) {
	d := &decoder{Problems: &yamlfile.Problems{}, file: name}
	format := yamlfile.Format{
		Bytes: MaxBytes, Depth: maxDepth, Weight: maxWeight,
		Content: "write a list or a rule", OneDocument: "write one policy into a file",
	}
	p := &Policy{data: map[string]any{}}
	if root := format.Read(content, "a mapping with allow, deny, redirect or rules", d.Problems); root != nil {
		p = d.policy(root)
	}
	if err := d.Err(name); err != nil {
		return nil, err
	}
	return p, nil
}

type decoder struct {
	*yamlfile.Problems

	file string
}

func (d *decoder) unknown(e yamlfile.Entry, where string, known ...string) {
	d.Addf(e.Position, "%s has no keyword %s%s", where, yamlfile.Quote(e.Key), d.Suggestion(e.Key, known))
}

func (d *decoder) policy(root *yamlfile.Value) *Policy {
	p := &Policy{data: map[string]any{}}
	for _, e := range root.Entries {
		switch e.Key {
		case "match":
			p.match = d.expression(e, cel.BoolType, false)
		case "data":
			if d.Mapping(e.Value, "data") {
				for _, item := range e.Value.Entries {
					p.data[item.Key] = d.constant(item.Value)
				}
			}
		case "allow":
			p.lists.allow = d.list(e, false)
		case "deny":
			p.lists.deny = d.list(e, false)
		case "redirect":
			p.lists.redirect = d.list(e, true)
		case "rules":
			p.rules = d.rules(e.Value)
		default:
			d.unknown(e, "a policy", "match", "data", "allow", "deny", "redirect", "rules")
		}
	}
	if len(p.rules)+len(p.lists.allow)+len(p.lists.deny)+len(p.lists.redirect) == 0 && len(d.Found) == 0 {
		d.Addf(root.Position, "the policy decides nothing: write a list or a rule")
	}
	return p
}

// expression returns nil after a problem.
func (d *decoder) expression(e yamlfile.Entry, want *cel.Type, perRunner bool) *expression {
	text := e.Value.Text
	if e.Value.Kind != yamlfile.Scalar || e.Value.Null() || text == "" {
		d.Addf(e.Value.Position, "%s must be an expression in CEL, not %s", e.Key, e.Value)
		return nil
	}
	out, err := compile(text, want, perRunner)
	if err != nil {
		d.Addf(e.Value.Position, "%s: %v", e.Key, err)
		return nil
	}
	out.at = fmt.Sprintf("%s:%d:%d: %s", d.file, e.Value.Line, e.Value.Column, e.Key)
	return out
}

// constant converts a value for CEL.
func (d *decoder) constant(v *yamlfile.Value) any {
	switch v.Kind {
	case yamlfile.List:
		out := make([]any, len(v.Items))
		for i, item := range v.Items {
			out[i] = d.constant(item)
		}
		return out
	case yamlfile.Map:
		out := make(map[string]any, len(v.Entries))
		for _, e := range v.Entries {
			out[e.Key] = d.constant(e.Value)
		}
		return out
	default:
		return d.scalar(v)
	}
}

func (d *decoder) scalar(v *yamlfile.Value) any {
	switch v.Tag {
	case "!!null":
		return nil
	case "!!bool":
		return d.Boolean(v, "a value of data")
	case "!!int":
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
			return n
		}
		d.Addf(v.Position, "a number of data must be a decimal integer of 64 bits, not %s: quote it for a text", v)
	case "!!float":
		if f, err := strconv.ParseFloat(v.Text, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
		d.Addf(v.Position, "%s is not a number that data may have: quote it for a text", v)
	}
	return v.Text
}

func (d *decoder) items(v *yamlfile.Value, what string, most int) []*yamlfile.Value {
	if v.Kind != yamlfile.List {
		d.Addf(v.Position, "%s must be a list, not %s", what, v)
		return nil
	}
	if len(v.Items) > most {
		d.Addf(v.Position, "%s has %d items: at most %d are allowed", what, len(v.Items), most)
		return nil
	}
	return v.Items
}

func (d *decoder) list(of yamlfile.Entry, redirect bool) []entry {
	items := d.items(of.Value, of.Key, MaxEntries)
	out := make([]entry, 0, len(items))
	for _, item := range items {
		if d.Mapping(item, "an item of "+of.Key) {
			out = append(out, d.entry(of.Key, item, redirect))
		}
	}
	return out
}

func (d *decoder) entry(list string, v *yamlfile.Value, redirect bool) entry {
	var out entry
	for _, e := range v.Entries {
		switch {
		case e.Key == "users":
			out.users = d.refs(e)
		case e.Key == "projects":
			out.projects = d.refs(e)
		case e.Key == "groups":
			out.groups = d.refs(e)
		case e.Key == "member_of":
			out.memberOf = d.refs(e)
		case e.Key == "runners":
			out.runners = d.runners(e)
		case e.Key == "reason":
			out.reason = d.reason(e)
		case e.Key == "add_tags" && redirect:
			out.addTags = d.tags(e)
		case e.Key == "remove_tags" && redirect:
			out.removeTags = d.tags(e)
		default:
			known := []string{"users", "projects", "groups", "member_of", "runners", "reason"}
			if redirect {
				known = append(known, "add_tags", "remove_tags")
			}
			d.unknown(e, "an item of "+list, known...)
		}
	}
	if len(out.users)+len(out.projects)+len(out.groups)+len(out.memberOf) == 0 {
		d.Addf(v.Position, "an item of %s needs users, projects, groups or member_of", list)
	}
	if redirect && len(out.addTags)+len(out.removeTags)+len(out.runners) == 0 {
		d.Addf(v.Position, "an item of redirect needs add_tags, remove_tags or runners")
	}
	d.disjoint(v, out.addTags, out.removeTags)
	return out
}

func (d *decoder) disjoint(v *yamlfile.Value, add, remove []string) {
	for _, tag := range add {
		for _, other := range remove {
			if tag == other {
				d.Addf(v.Position, "the tag %s is both added and removed", yamlfile.Quote(tag))
			}
		}
	}
}

// named returns the items of a list that must not be empty: an empty one would select everything.
func (d *decoder) named(e yamlfile.Entry) []*yamlfile.Value {
	if e.Value.Kind == yamlfile.List && len(e.Value.Items) == 0 {
		d.Addf(e.Value.Position, "%s is empty: remove it, or name at least one", e.Key)
	}
	return d.items(e.Value, e.Key, MaxEntries)
}

// refs returns ids, which are numbers, and names.
func (d *decoder) refs(e yamlfile.Entry) []ref {
	var out []ref
	for _, item := range d.named(e) {
		if item.Kind == yamlfile.Scalar && item.Tag == "!!int" {
			out = append(out, ref{id: d.id(item, "an id in "+e.Key)})
			continue
		}
		out = append(out, ref{name: d.Text(item, "an item of "+e.Key)})
	}
	return out
}

func (d *decoder) id(v *yamlfile.Value, what string) int64 {
	if v.Kind == yamlfile.Scalar && v.Tag == "!!int" {
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil && n > 0 {
			return n
		}
	}
	d.Addf(v.Position, "%s must be a positive number, not %s", what, v)
	return 1
}

func (d *decoder) runners(e yamlfile.Entry) []int64 {
	var out []int64
	for _, item := range d.named(e) {
		out = append(out, d.id(item, "the id of a runner"))
	}
	return out
}

func (d *decoder) tags(e yamlfile.Entry) []string {
	var out []string
	for _, item := range d.items(e.Value, e.Key, payload.MaxTags) {
		if tag := d.Text(item, "an item of "+e.Key); tag != "" {
			if err := payload.CheckTag(tag); err != nil {
				d.Addf(item.Position, "%v", err)
			}
			out = append(out, tag)
		}
	}
	return out
}

func (d *decoder) reason(e yamlfile.Entry) string {
	text := d.Text(e.Value, e.Key)
	if n := utf8.RuneCountInString(text); n > payload.MaxReasonCharacters {
		d.Addf(e.Value.Position, "reason has %d characters: at most %d are allowed", n, payload.MaxReasonCharacters)
	}
	return text
}

func (d *decoder) rules(v *yamlfile.Value) []rule {
	var out []rule
	for _, item := range d.items(v, "rules", MaxRules) {
		if d.Mapping(item, "an item of rules") {
			out = append(out, d.rule(item))
		}
	}
	return out
}

var ruleKeywords = []string{
	"if", "allow", "deny", "reason", "reason_expression", "add_tags", "add_tags_expression", "remove_tags",
	"remove_tags_expression", "accept_runners_if", "reject_runners_if",
}

func (d *decoder) rule(v *yamlfile.Value) rule {
	out := rule{at: fmt.Sprintf("%s:%d:%d", d.file, v.Line, v.Column)}
	decide := func(e yamlfile.Entry, is effect) {
		switch {
		case e.Value.Kind != yamlfile.Scalar || e.Value.Tag != "!!bool" || !d.Boolean(e.Value, e.Key):
			d.Addf(e.Value.Position, "%s must be true, not %s: remove it, or write a condition into if", e.Key, e.Value)
		case out.effect != noEffect:
			d.Addf(e.Position, "a rule has either allow or deny")
		default:
			out.effect = is
		}
	}
	changes := 0
	for _, e := range v.Entries {
		switch e.Key {
		case "if":
			out.condition = d.expression(e, cel.BoolType, false)
		case "allow":
			decide(e, allow)
		case "deny":
			decide(e, deny)
		case "reason":
			out.reason = d.reason(e)
		case "reason_expression":
			out.reasonExpression = d.expression(e, cel.StringType, false)
		default:
			if !d.change(&out, e) {
				d.unknown(e, "a rule", ruleKeywords...)
				continue
			}
			changes++
		}
	}
	switch {
	case out.effect == deny && changes > 0:
		d.Addf(v.Position, "a rule with deny cannot change tags or runners: the changes of a rejected job are ignored")
	case out.effect == noEffect && changes == 0:
		d.Addf(v.Position, "a rule needs allow, deny, or a change of tags or runners")
	case out.reason != "" && out.reasonExpression != nil:
		d.Addf(v.Position, "a rule has either reason or reason_expression")
	}
	d.disjoint(v, out.addTags, out.removeTags)
	return out
}

// change decodes a change of tags or runners. It returns false for another keyword.
func (d *decoder) change(out *rule, e yamlfile.Entry) bool {
	texts := cel.ListType(cel.StringType)
	switch e.Key {
	case "add_tags":
		out.addTags = d.tags(e)
	case "remove_tags":
		out.removeTags = d.tags(e)
	case "add_tags_expression":
		out.addExpression = d.expression(e, texts, false)
	case "remove_tags_expression":
		out.removeExpression = d.expression(e, texts, false)
	case "accept_runners_if":
		out.acceptIf = d.expression(e, cel.BoolType, true)
	case "reject_runners_if":
		out.rejectIf = d.expression(e, cel.BoolType, true)
	default:
		return false
	}
	return true
}
