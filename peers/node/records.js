import { writeFile } from "node:fs/promises";

// Grants: three times in nanoseconds, and the task and the key.
export class Records {
  #numbers = new BigUint64Array(4 * 256);
  #used = 0;

  add(requested, granted, released, key, task) {
    this.#push([requested, granted, released, (BigInt(key) << 32n) | BigInt(task)]);
  }

  append(other) {
    this.#push(other.#numbers.subarray(0, other.#used));
  }

  #push(numbers) {
    const needed = this.#used + numbers.length;
    if (needed > this.#numbers.length) {
      const more = new BigUint64Array(2 * needed);
      more.set(this.#numbers);
      this.#numbers = more;
    }
    this.#numbers.set(numbers, this.#used);
    this.#used = needed;
  }

  // In the byte order of the machine, which is little-endian on all supported machines.
  async write(file) {
    await writeFile(file, this.#numbers.subarray(0, this.#used));
    return this.#used / 4;
  }
}

export const now = () => process.hrtime.bigint();
