package decide

import (
	"sync"

	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/policy"
)

// maxCompiled is the number of compiled policies and conditions that are kept.
const maxCompiled = 1000

// compiled keeps compiled policies and conditions of revisions of controllers.
type compiled struct {
	mu         sync.Mutex
	policies   map[revision]*policy.Policy
	conditions map[revision]*policy.Condition
}

type revision struct{ id, revision int64 }

func newCompiled() *compiled {
	return &compiled{policies: map[revision]*policy.Policy{}, conditions: map[revision]*policy.Condition{}}
}

func (k *compiled) policy(c controller.Controller) (*policy.Policy, error) {
	return cached(&k.mu, k.policies, c, func() (*policy.Policy, error) { return policy.Parse(c.Name, []byte(c.Policy)) })
}

func (k *compiled) condition(c controller.Controller) (*policy.Condition, error) {
	return cached(&k.mu, k.conditions, c, func() (*policy.Condition, error) { return policy.CompileCondition(c.Match) })
}

// cached returns the entry of a controller. Two callers may compile the same one.
func cached[T any](
	mu *sync.Mutex, entries map[revision]*T, c controller.Controller, compile func() (*T, error),
) (*T, error) {
	key := revision{c.ID, c.Revision}
	mu.Lock()
	known, found := entries[key]
	mu.Unlock()
	if found {
		return known, nil
	}
	made, err := compile()
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if len(entries) >= maxCompiled {
		clear(entries)
	}
	entries[key] = made
	return made, nil
}
