package meter

import (
	"slices"
	"time"
)

// day counts the last 24 hours in steps of an hour. A restart reads all messages of these hours again, so it ends no
// block early.
type day struct {
	hours []usedHour // oldest first
	bytes int64      // of all hours
	// subjects has the hash of each subject with the last hour in which it occurred. It is the meter's largest part.
	subjects map[uint64]hour
}

type usedHour struct {
	hour  hour
	bytes int64
}

// hour counts full hours since 1970.
type hour int32

func hourOf(at time.Time) hour { return hour(at.Unix() / int64(time.Hour/time.Second)) }

// leaves returns the time at which all messages of the hour are older than a day.
func (h hour) leaves() time.Time {
	return time.Unix(0, 0).UTC().Add(time.Duration(h+1)*time.Hour + Day)
}

// Since returns the time from which messages still count.
func Since(now time.Time) time.Time { return now.Add(-Day).Truncate(time.Hour) }

func (d *day) add(message Message, subject uint64) {
	now := hourOf(message.Stored)
	if n := len(d.hours); n == 0 || d.hours[n-1].hour < now {
		d.hours = append(d.hours, usedHour{hour: now})
	}
	newest := &d.hours[len(d.hours)-1]
	newest.bytes += int64(message.Bytes)
	d.bytes += int64(message.Bytes)
	d.subjects[subject] = newest.hour
}

// drop removes the hours that have left the day.
func (d *day) drop(now time.Time) {
	for len(d.hours) > 0 && !now.Before(d.hours[0].hour.leaves()) {
		d.bytes -= d.hours[0].bytes
		d.hours = d.hours[1:]
	}
	for subject, last := range d.subjects {
		if !now.Before(last.leaves()) {
			delete(d.subjects, subject)
		}
	}
}

// bytesSince returns the bytes of the day that ends now.
func (d *day) bytesSince(now time.Time) int64 {
	bytes := d.bytes
	for _, used := range d.hours {
		if now.Before(used.hour.leaves()) {
			break
		}
		bytes -= used.bytes
	}
	return bytes
}

// subjectsSince returns the number of subjects of the day that ends now. Only the next message on the stream drops the
// earlier ones.
func (d *day) subjectsSince(now time.Time) int {
	if n := len(d.hours); n == 0 || !now.Before(d.hours[n-1].hour.leaves()) {
		return 0
	}
	return len(d.subjects)
}

// fits returns the time at which so many hours have left that the bytes are within the limit.
func (d *day) fits(limit int64) time.Time {
	bytes := d.bytes
	for _, used := range d.hours {
		if bytes -= used.bytes; bytes <= limit {
			return used.hour.leaves()
		}
	}
	return d.hours[len(d.hours)-1].hour.leaves()
}

// fewerSubjects returns the time at which so many subjects have left that their number is within the limit.
func (d *day) fewerSubjects(limit int) time.Time {
	last := make([]hour, 0, len(d.subjects))
	for _, each := range d.subjects {
		last = append(last, each)
	}
	slices.Sort(last)
	return last[len(last)-limit-1].leaves()
}
