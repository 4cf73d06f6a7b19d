package nats_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// Whoever may write into one cluster writes what no stream takes: it is cut off, told all the same, and holds up nobody.
func TestWhatIsTooLongIsCutOffAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<", 100_000) // each is six bytes in JSON
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
				o.Template.Images = append(o.Template.Images, events.TemplateImage{Container: fmt.Sprint(n, long[:1000]), Image: fmt.Sprint(n, long[:1000])})
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
			w := setup(t)
			a := w.agent(7)
			big, web := a.app("big"), a.app("web")
			a.list("s", big, web)
			for n := range 2 { // so that there are images before too
				big.roll(fmt.Sprint("i:", n+2))
				o := big.observation()
				inflate(&o)
				big.rv = a.next()
				o.Object.ResourceVersion = big.rv
				a.say(big.subject(), events.TypeObservedWorkload, o)
			}
			web.roll("i:2")
			web.finish()
			big.finish()
			w.take()
			facts := w.once()
			require.Empty(t, w.dead())
			require.Equal(t, []string{"started", "completed"}, names(facts, "web")[:2])
			require.Contains(t, names(facts, "big"), "completed")
			require.Empty(t, w.rebuild(true, 0).Differences)
		})
	}
}

func TestNamesThatNoClusterGivesAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	bad := a.app("bad")
	for _, change := range []func(*events.ObservedWorkload){
		func(o *events.ObservedWorkload) { o.Object.Namespace = strings.Repeat("n", 900) },
		func(o *events.ObservedWorkload) { o.Object.Name = "a<b" },
	} {
		said := bad.observation()
		change(&said)
		a.say(cell.ObservedWorkload(7, "deployment", said.Object.Namespace, said.Object.Name), events.TypeObservedWorkload, said)
	}
	set := bad.sets[0]
	set.hash = strings.Repeat("h", 3000) // an index takes no more
	bad.tellSet(set)
	web.roll("i:2")
	w.take()
	require.Len(t, w.dead(), 3)
	require.Equal(t, []string{"started"}, names(w.once(), "web"))
}
