package audit

import (
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
)

const (
	// DefaultBurst is the default number of records that one caller may cause at once.
	DefaultBurst = 10_000
	// DefaultPerMinute is the default number of records that one caller may cause per minute after the burst.
	DefaultPerMinute = 120
	// summaryInterval is how long requests of one kind are summed up in one record.
	summaryInterval = time.Minute
	// maxKinds of one caller in an interval. Further kinds, and long names, are one kind per agent and protocol.
	maxKinds = 20
	// manyTargets is the target of a summary of requests to any targets. No target has this name.
	manyTargets = "*"
)

// caller is who made a request, whichever token it used.
type caller struct {
	userID  int64
	subject string
}

// callerOf is empty for services without a rule: a service chooses its subject.
func callerOf(r Record) caller {
	if r.WithoutRule {
		return caller{}
	}
	return caller{r.UserID, r.Subject}
}

// budget counts the records that one caller may still cause, and sums up its requests above that.
type budget struct {
	limiter   *rate.Limiter
	summaries map[kind]*Record
}

// kind of requests that are summed up in one record.
type kind struct {
	agentID                int64
	target                 string
	protocol               Protocol
	method, verb           string
	group, resource        string
	subresource, namespace string
	status                 int
}

// Allow reports whether the caller may cause this many further records. If not, [Log.Sum] sums up the request. A record
// with long names or a long path takes more of the budget.
func (l *Log) Allow(r Record, records int) bool {
	cost := min(records*truncated(r).cost(), l.cfg.Burst)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.budget(callerOf(r)).limiter.AllowN(time.Now(), cost)
}

// budget is called with the mutex held.
func (l *Log) budget(c caller) *budget {
	b := l.budgets[c]
	if b == nil {
		perSecond := rate.Limit(float64(l.cfg.PerMinute) / time.Minute.Seconds())
		b = &budget{limiter: rate.NewLimiter(perSecond, l.cfg.Burst), summaries: map[kind]*Record{}}
		l.budgets[c] = b
	}
	return b
}

// Sum counts an ended request that has no record of its own. Once per minute each kind of request of each caller gives
// one record: without names, paths and errors, with the number of requests. It needs no reservation.
func (l *Log) Sum(r Record) {
	r = truncated(r)
	r.Path = ""
	c := callerOf(r)
	k := kind{
		agentID: r.AgentID, target: r.Target, protocol: r.Protocol, method: r.Method, verb: r.Verb,
		group: r.Resource.Group, resource: r.Resource.Resource, subresource: r.Resource.Subresource,
		namespace: r.Resource.Namespace, status: r.Status,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.budget(c)
	if b.summaries[k] == nil && (len(b.summaries) >= maxKinds || r.cost() > 1) {
		k = kind{agentID: r.AgentID, target: r.Target, protocol: r.Protocol}
		if r.Protocol != Kubernetes { // callers choose names of targets
			k.target = manyTargets
		}
	}
	s := b.summaries[k]
	if s == nil {
		s = &Record{
			RequestID: uuid.NewString(), UserID: c.userID, Subject: c.subject, AgentID: k.agentID, Target: k.target,
			Protocol: k.protocol, Phase: Ended, Method: k.method, Verb: k.verb, Status: k.status, StartedAt: r.StartedAt,
		}
		if k.resource != "" {
			s.Resource = r.Resource
			s.Resource.Name = ""
		}
		b.summaries[k] = s
	}
	s.Count++
	s.BytesSent += r.BytesSent
	s.BytesReceived += r.BytesReceived
	last := s.StartedAt.Add(s.Duration)
	if r.StartedAt.Before(s.StartedAt) {
		s.StartedAt = r.StartedAt
	}
	if r.StartedAt.After(last) {
		last = r.StartedAt
	}
	s.Duration = last.Sub(s.StartedAt)
}

// flushSummaries adds the records of all summaries for which there is capacity. Others continue to count.
func (l *Log) flushSummaries() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, b := range l.budgets {
		for k, s := range b.summaries {
			if !l.capacity.TryAcquire(1) {
				return
			}
			delete(b.summaries, k)
			l.add(*s)
		}
		if b.limiter.Tokens() >= float64(l.cfg.Burst) {
			delete(l.budgets, c)
		}
	}
}
