package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep.internal/services/admission/payload"
)

// Policy is a parsed policy. It is safe for concurrent use.
type Policy struct {
	match *expression
	data  map[string]any
	lists lists
	rules []rule
}

// effect tells how a rule ends the evaluation.
type effect int

const (
	noEffect effect = iota
	allow
	deny
)

// rule is a rule of a policy. Expressions are nil if they are absent.
type rule struct {
	condition                       *expression
	effect                          effect
	reason                          string
	reasonExpression                *expression
	addTags, removeTags             []string
	addExpression, removeExpression *expression
	acceptIf, rejectIf              *expression
	at                              string
}

// Evaluate decides about a job. An error is an [*EvaluationError]. It takes at most [Timeout].
func (p *Policy) Evaluate(ctx context.Context, in Input) (payload.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	values := in.activation(p.data)
	if p.match != nil {
		matches, err := p.match.isTrue(ctx, values)
		if err != nil {
			return payload.Answer{}, err
		}
		if !matches {
			return payload.Answer{JobID: in.Job.ID, Accepted: true}, nil
		}
	}
	d := &decision{jobID: in.Job.ID}
	p.lists.apply(d, in)
	for i := range p.rules {
		if d.rejected {
			break
		}
		ends, err := p.rules[i].apply(ctx, d, in, values)
		if err != nil {
			return payload.Answer{}, err
		}
		if ends {
			break
		}
	}
	return d.answer(in.Runners), nil
}

// apply applies a rule, and reports whether it ends the evaluation.
func (r *rule) apply(ctx context.Context, d *decision, in Input, values map[string]any) (bool, error) {
	if r.condition != nil {
		if holds, err := r.condition.isTrue(ctx, values); err != nil || !holds {
			return false, err
		}
	}
	reason := r.reason
	if r.reasonExpression != nil {
		var err error
		if reason, err = evalAs[string](ctx, r.reasonExpression, values, "a text"); err != nil {
			return false, err
		}
	}
	if r.effect == deny {
		if reason == "" {
			reason = "the policy denies the job"
		}
		d.reject(reason)
		return true, nil
	}
	if err := r.change(ctx, d, in, values, reason); err != nil {
		return false, err
	}
	d.addReason(reason)
	return r.effect == allow, nil
}

func (r *rule) change(ctx context.Context, d *decision, in Input, values map[string]any, reason string) error {
	add, err := r.tags(ctx, r.addTags, r.addExpression, values)
	if err != nil {
		return err
	}
	remove, err := r.tags(ctx, r.removeTags, r.removeExpression, values)
	if err != nil {
		return err
	}
	for _, tag := range add {
		if slices.Contains(remove, tag) {
			return &EvaluationError{At: r.at, Err: fmt.Errorf("the rule both adds and removes the tag %q", tag)}
		}
	}
	d.changeTags(add, remove)
	if r.acceptIf != nil {
		ids, err := selected(ctx, r.acceptIf, in.Runners, values)
		if err != nil {
			return err
		}
		d.acceptRunners(ids)
	}
	if r.rejectIf != nil {
		ids, err := selected(ctx, r.rejectIf, in.Runners, values)
		if err != nil {
			return err
		}
		d.rejectRunners(ids, reason)
	}
	return nil
}

// tags returns the constant tags and those of the expression.
func (r *rule) tags(ctx context.Context, constant []string, e *expression, values map[string]any) ([]string, error) {
	if e == nil {
		return constant, nil
	}
	list, err := evalAs[[]string](ctx, e, values, "a list of texts")
	if err != nil {
		return nil, err
	}
	if len(list) > payload.MaxTags {
		return nil, &EvaluationError{At: e.at, Err: fmt.Errorf("%d tags: at most %d are allowed", len(list), payload.MaxTags)}
	}
	for _, tag := range list {
		if err := payload.CheckTag(tag); err != nil {
			return nil, &EvaluationError{At: e.at, Err: err}
		}
	}
	return slices.Concat(constant, list), nil
}

// selected returns the ids of the runners for which the expression is true.
func selected(ctx context.Context, e *expression, runners []Runner, values map[string]any) ([]int64, error) {
	values = maps.Clone(values)
	ids := []int64{}
	for _, r := range runners {
		values["runner"] = r
		yes, err := e.isTrue(ctx, values)
		if err != nil {
			return nil, err
		}
		if yes {
			ids = append(ids, r.ID)
		}
	}
	return ids, nil
}

func (d *decision) reason() string { return payload.Reason(strings.Join(d.reasons, "; ")) }

func sortedKeys(set map[int64]bool) []int64 {
	if len(set) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(set))
}
