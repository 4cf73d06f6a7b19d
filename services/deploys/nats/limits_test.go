package nats_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// Users of a cluster can write values that exceed the message size. They are truncated, and the rollout is published.
func TestOversizedValuesAreTruncatedAndPublished(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<", 100_000) // six bytes each in JSON
	for name, inflate := range map[string]func(*events.ObservedWorkload){
		"annotations": func(o *events.ObservedWorkload) {
			o.Object.Annotations = map[string]string{"lockstep.dev/url": "https://x", "a": long, "b": long, "c": long}
		},
		"labels": func(o *events.ObservedWorkload) {
			for n := range 3000 {
				o.Object.Labels[fmt.Sprint("label-", n)] = strings.Repeat("<", 63)
			}
		},
		"images": func(o *events.ObservedWorkload) {
			for n := range 200 {
				o.Template.Images = append(o.Template.Images, events.TemplateImage{
					Container: fmt.Sprint(n, long[:1000]), Image: fmt.Sprint(n, long[:1000]),
				})
			}
		},
		"conditions": func(o *events.ObservedWorkload) {
			for range 3 {
				c := o.Conditions[0]
				c.Message += long
				o.Conditions = append(o.Conditions, c)
			}
			o.Conditions[0].Reason += long
		},
		"the name of an environment": func(o *events.ObservedWorkload) {
			o.Object.Annotations = map[string]string{label: strings.Repeat("g", 10_000)}
		},
		"texts of the template": func(o *events.ObservedWorkload) {
			o.Template.ChangedBy, o.Strategy = long, long
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			big, web := a.app("big"), a.app("web")
			a.list("s", big, web)
			for n := range 2 { // so that previous images exist
				big.roll(fmt.Sprint("i:", n+2))
				o := big.observation()
				inflate(&o)
				big.rv = a.next()
				o.Object.ResourceVersion = big.rv
				a.publish(big.subject(), events.TypeObservedWorkload, o)
			}
			web.roll("i:2")
			web.finish()
			big.finish()
			w.process()
			facts := w.checkOnce()
			require.Empty(t, w.deadLetters())
			require.Equal(t, []string{"started", "completed"}, names(facts, "web")[:2])
			require.Contains(t, names(facts, "big"), "completed")
			require.Empty(t, w.rebuild(true, 0).Differences)
		})
	}
}

func TestInvalidNamesAreDeadLettered(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	bad := a.app("bad")
	for _, change := range []func(*events.ObservedWorkload){
		func(o *events.ObservedWorkload) { o.Object.Namespace = strings.Repeat("n", 900) },
		func(o *events.ObservedWorkload) { o.Object.Name = "a<b" },
	} {
		changed := bad.observation()
		change(&changed)
		a.publish(cell.ObservedWorkload(7, "deployment", changed.Object.Namespace, changed.Object.Name),
			events.TypeObservedWorkload, changed)
	}
	set := bad.sets[0]
	set.hash = strings.Repeat("h", 3000) // beyond the limit of an index
	bad.sendSet(set)
	web.roll("i:2")
	w.process()
	require.Len(t, w.deadLetters(), 3)
	require.Equal(t, []string{"started"}, names(w.checkOnce(), "web"))
}
