"""Forecasts a temperature one hour ahead from the last day, with windows over a series."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
DAY = 24

# 40 days of hourly weather: temperature, pressure and wind.
hours = np.arange(40 * DAY)
temperature = 10 + 5 * np.sin(2 * np.pi * hours / DAY) + np.cumsum(np.random.normal(scale=0.2, size=len(hours)))
pressure = 1000 + 3 * np.cos(2 * np.pi * hours / DAY) + np.random.normal(size=len(hours))
wind = np.abs(np.random.normal(scale=4, size=len(hours)))
series = np.stack([temperature, pressure, wind], axis=1)

split = 30 * DAY
mean, deviation = series[:split].mean(axis=0), series[:split].std(axis=0)
series = ((series - mean) / deviation).astype("float32")


def windows(first: int, last: int) -> object:
    """Returns batches of days within first:last, each with the temperature of the hour after it."""
    return keras.utils.timeseries_dataset_from_array(
        series[first : last - 1], series[first + DAY : last, 0], sequence_length=DAY, sampling_rate=1, batch_size=50
    )


train, validation = windows(0, split), windows(split, len(series))

inputs = keras.Input((DAY, 3))
hidden = layers.LSTM(16)(inputs)
model = keras.Model(inputs, layers.Dense(1)(hidden))
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
callbacks = [
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.3, patience=1),
]
history = model.fit(train, validation_data=validation, epochs=4, callbacks=callbacks, verbose=2)

loss, error = model.evaluate(validation, verbose=0)
print(f"mean absolute error: {error * deviation[0]:.2f} degrees")
forecast = model.predict(validation, verbose=0)[:, 0] * deviation[0] + mean[0]
print("the last five hours:", forecast[-5:].round(1))
