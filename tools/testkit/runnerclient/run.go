package runnerclient

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Runs configures [Client.Run].
type Runs struct {
	// Concurrency is the maximum number of jobs at the same time. Defaults to 1.
	Concurrency int
	// CheckInterval is the pause after a request without a job. Defaults to none: the server holds requests.
	CheckInterval time.Duration
	// Script of a job.
	Script func(*Job) Script
	// Done receives each result. It may be called from several goroutines. Optional.
	Done func(*Job, Result, error)
}

// Run requests jobs, one request at a time, and executes them. It returns nil when ctx ends, after its jobs. It returns
// [ErrDisabled] when the server has refused the runner. Other failures are tried again.
func (c *Client) Run(ctx context.Context, runs Runs) error {
	slots := make(chan struct{}, max(runs.Concurrency, 1))
	var jobs sync.WaitGroup
	defer jobs.Wait()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		job, err := c.RequestJob(ctx)
		if job != nil {
			jobs.Go(func() {
				defer func() { <-slots }()
				result, err := c.Execute(ctx, job, runs.Script(job))
				if runs.Done != nil {
					runs.Done(job, result, err)
				}
			})
			continue
		}
		<-slots
		wait := runs.CheckInterval
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrDisabled):
			return err
		case err != nil:
			wait = defaultInterval
		}
		if c.pause(ctx, wait) != nil {
			return nil
		}
	}
}
